"""What envs return, as what it must be: a number per reward, yes or no per end; and the error where it is not.

NumPy would make NaN of None, and Python would take any word for yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as brief
from typing import Any

import numpy as np

from swath.errors import BadAnswer
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.spaces import Array


def bad_answer(error: Exception, env: Any, form: str) -> BadAnswer:
    """The error of an env that returned what cannot be used.

    Args:
        error: raised when the answer was read.
        env: which env.
        form: what its API wants, in one sentence.
    """
    said = f"no entry {error}" if isinstance(error, KeyError) else str(error)
    bad = BadAnswer(f"{env}: {said}; {form}")
    bad.__cause__ = error
    return bad


def as_reward(given: Any, whose: str = "") -> float:
    """One number, which may come as an array of one element.

    Raises:
        ValueError: it is something else.
    """
    try:
        return float(+np.asarray(given).item())  # the sign refuses words that float() would read
    except Exception as error:
        raise ValueError(f"the env returned the reward {brief(given)}{whose}; it must be one number") from error


def as_rewards(given: Sequence[Any]) -> Array:
    """The rewards of B envs, float64 `[B]`.

    Raises:
        EnvRaised: that of an env is not one number.
    """
    rewards = np.zeros(len(given))
    for env, each in enumerate(given):
        try:
            rewards[env] = as_reward(each)
        except ValueError as error:
            raise EnvRaised(env, error) from error
    return rewards


def as_batch_of_rewards(given: Any, num_envs: int) -> Array:
    """The rewards `[B]` that a vector env returned.

    Raises:
        ValueError: they are not one number for each env.
    """
    rewards = np.asarray(given)
    if rewards.dtype.kind not in "fiub" or rewards.size != num_envs:
        raise ValueError(f"the env returned the rewards {brief(given)}; they must be one number for each env")
    return rewards.reshape(num_envs)


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
    flags = np.asarray(given)
    if (flags.dtype.kind != "b" and not np.isin(flags, (0, 1)).all()) or flags.size != num_envs:
        raise ValueError(f"the env returned {name}={brief(given)}; it must be True or False for each env")
    return flags.reshape(num_envs).astype(np.bool_, copy=False)
