"""What envs return beside their observations: infos, rewards, flags; and the error where it is not what it must be.

numpy would make NaN of None, and Python would take any word for yes. Infos are one mapping per env, or a vector env's
mapping of batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as brief
from typing import Any

import numpy as np

from swath.errors import BadAnswer
from swath.rollout.hosts.base import Infos
from swath.rollout.spaces import Array, first_unrepresentable

# Batches have rewards as float32.
_FLOAT32 = np.dtype(np.float32)
LARGEST_REWARD = float(np.finfo(_FLOAT32).max)

_FINAL, _FINAL_OBS = "final_info", ("final_obs", "terminal_observation")


def info_of(infos: Infos, env: int) -> Mapping[str, Any]:
    """What one env said in the step; at the end of an episode what its last step said, not the reset after it.

    A vector env's batch has an entry `_name` beside each `name` that says which envs it is from; entries without one
    are from all. What the vector env itself says beside the envs' final infos is kept.
    """
    if not isinstance(infos, Mapping):
        return (infos[env] if infos else None) or {}  # None is an empty one
    row = _row(infos, env)
    final = row.pop(_FINAL, {})
    # After a reset in the same step the other entries are those of the new episode, but for what wrappers of the whole
    # vector env have added about the one that ended.
    return {**row, **final} if isinstance(final, dict) else row


def first_info_of(infos: Infos, env: int) -> Mapping[str, Any]:
    """What one env said in a reset within the step, without what the step before it said."""
    row = _row(infos, env) if isinstance(infos, Mapping) else info_of(infos, env)
    return {name: value for name, value in row.items() if name not in (_FINAL, *_FINAL_OBS)}


def _row(infos: Mapping[str, Any], env: int) -> dict[str, Any]:
    row = {}
    for name, value in infos.items():
        mask, is_mask = infos.get(f"_{name}"), name.startswith("_") and name[1:] in infos
        if is_mask or (mask is not None and not mask[env]):
            continue
        is_batch = isinstance(value, np.ndarray | list | tuple) and env < len(value)
        row[name] = _row(value, env) if isinstance(value, Mapping) else value[env] if is_batch else value
    return row


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


def rewards_of(given: Any, num_envs: int = 1, whose: str = "") -> Array:
    """Rewards `[B]` that an env returned; that of a single one may come as an array of one element.

    Raises:
        ValueError: they are not one number for each env, or a finite one is beyond the range of float32.
    """
    rewards = np.asarray(given)
    if rewards.dtype.kind not in "fiub" or rewards.size != num_envs:
        raise ValueError(f"the env returned the reward {brief(given)}{whose}; it must be one number for each env")
    rewards = rewards.reshape(num_envs)
    if rewards.dtype == np.float64 and not np.vdot(rewards, rewards) < LARGEST_REWARD**2:
        lost = first_unrepresentable(rewards, _FLOAT32)
        if lost is not None:
            raise ValueError(f"the env returned the reward {lost}{whose}, which float32 cannot hold; scale it down")
    return rewards


def flags_of(name: str, given: Any, num_envs: int = 1) -> Array:
    """Whether an episode has ended in each env: bool `[B]`.

    Raises:
        ValueError: it says neither yes nor no of each.
    """
    flags = np.asarray([given]) if type(given) is bool else np.asarray(given)
    if flags.dtype.kind == "b" and flags.shape == (num_envs,):
        return flags
    if flags.size != num_envs or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise ValueError(f"the env returned {name}={brief(given)}; it must be True or False for each env")
    return flags.reshape(num_envs).astype(np.bool_, copy=False)
