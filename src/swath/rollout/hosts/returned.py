"""What envs return beside observations, as what it must be: a number per reward, yes or no per end.

NumPy would make NaN of None, and Python would take any word for yes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from reprlib import repr as brief
from typing import Any

import numpy as np

from swath.rollout.hosts.base import EnvRaised
from swath.rollout.spaces import Array


def as_rewards(given: Sequence[Any]) -> Array:
    """The rewards of B envs, float64 `[B]`.

    Raises:
        EnvRaised: that of an env is not one number.
    """
    try:
        return np.frombuffer(array("d", given))  # as quick as an array of floats, and takes nothing else for a number
    except Exception:  # noqa: BLE001  whatever it is, each is looked at alone
        return np.array([_of(env, each) for env, each in enumerate(given)])


def as_batch_of_rewards(given: Any, num_envs: int) -> Array:
    """What a vector env has paid, a number for each of its envs: arrays are left as they are, others are float64 `[B]`.

    Raises:
        ValueError: it is something else.
    """
    if type(given) is np.ndarray and given.shape == (num_envs,) and given.dtype.kind in "fiub":
        return given
    if (shape := np.shape(given))[:1] != (num_envs,):
        raise ValueError(f"the env returned rewards of shape {tuple(shape)}; it must be one number for each env")
    try:
        return as_rewards(given)
    except EnvRaised as raised:
        raise raised.cause from raised.cause.__cause__


def as_reward(given: Any, whose: str = "") -> float:
    """One number, which may come as an array of one element.

    Raises:
        ValueError: it is something else.
    """
    try:
        return float(+np.asarray(given).item())  # the sign refuses words that float() would read
    except Exception as error:
        raise ValueError(f"the env returned the reward {brief(given)}{whose}; it must be one number") from error


def as_flag(name: str, given: Any) -> bool:
    """Whether an episode has ended.

    Raises:
        ValueError: it says neither yes nor no.
    """
    plain = given.item() if hasattr(given, "item") else given
    if plain not in (0, 1):
        raise ValueError(f"the env returned {name}={brief(given)}; it must be True or False")
    return bool(plain)


def as_batch_of_flags(name: str, given: Any, num_envs: int) -> Array:
    """Whether an episode has ended in each env of a vector env: bool `[B]`.

    Raises:
        ValueError: it says neither yes nor no of each.
    """
    if type(given) is np.ndarray and given.shape == (num_envs,) and given.dtype.kind == "b":
        return given
    if (shape := np.shape(given))[:1] != (num_envs,):
        raise ValueError(f"the env returned {name} of shape {tuple(shape)}; it must be True or False for each env")
    return np.array([as_flag(name, each) for each in given])


def _of(env: int, given: Any) -> float:
    try:
        return as_reward(given)
    except ValueError as error:
        raise EnvRaised(env, error) from error
