"""Readers of infos, rewards and flags that envs return, which raise for invalid values.

numpy would turn None into NaN, and Python any string into True. Infos are one mapping per env, or a vector env's
mapping of batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as brief
from typing import Any

import numpy as np

from swath.errors import BadAnswer
from swath.keys import MISSING
from swath.rollout.hosts.base import Ends, Infos
from swath.rollout.spaces import Array, first_unrepresentable

# The dtype of rewards in batches.
_FLOAT32 = np.dtype(np.float32)
LARGEST_REWARD = float(np.finfo(_FLOAT32).max)

# The names under which libraries keep true last observations in infos.
FINAL_OBSERVATIONS = ("final_obs", "final_observation", "terminal_observation")
FINAL_INFO = "final_info"


def info_of(infos: Infos, env: int) -> Mapping[str, Any]:
    """Return the info of one env in a step; at the end of an episode of the last step, not of the reset after it.

    A vector env's batch has a mask `_name` of the envs for each entry `name`; an entry without one is from all envs.
    Entries of the vector env itself are kept with the final infos of its envs.
    """
    if not isinstance(infos, Mapping):
        return (infos[env] if infos else None) or {}  # None is an empty one
    row = _row(infos, env)
    final = row.pop(FINAL_INFO, {})
    # After a reset in the same step the other entries belong to the new episode, except those that wrappers of the
    # vector env add about the ended one.
    return {**row, **final} if isinstance(final, dict) else row


def first_info_of(infos: Infos, env: int) -> Mapping[str, Any]:
    """Return the info of one env in a reset within the step, without the final info of the step."""
    row = _row(infos, env) if isinstance(infos, Mapping) else info_of(infos, env)
    return {name: value for name, value in row.items() if name not in (FINAL_INFO, *FINAL_OBSERVATIONS)}


def final_of(infos: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the true last observations in the infos of a step, and the mask of envs that have sent theirs.

    The observations are `None` if the infos have none, the mask if they do not say of which envs they are.
    """
    for name in FINAL_OBSERVATIONS:
        if (observations := infos.get(name)) is not None:
            return observations, infos.get(f"_{name}")
    return None, None


def _row(infos: Mapping[str, Any], env: int) -> dict[str, Any]:
    row = {}
    for name, value in infos.items():
        mask, is_mask = infos.get(f"_{name}"), name.startswith("_") and name[1:] in infos
        if is_mask or (mask is not None and not mask[env]):
            continue
        is_batch = isinstance(value, np.ndarray | list | tuple) and env < len(value)
        row[name] = _row(value, env) if isinstance(value, Mapping) else value[env] if is_batch else value
    return row


def no_final_observation() -> BadAnswer:
    """Return the error for episodes that ended without their last observation."""
    names = " or ".join(f"infos[{name!r}]" for name in FINAL_OBSERVATIONS)
    return BadAnswer(
        f"episodes ended, and the env sent no last observation of them as {names}; have it send them, or pass "
        f"final_observation='missing' to a collector, which marks these rows in {MISSING}"
    )


def mark_missing(missing: Array | None, ends: Ends, t: int) -> None:
    """Mark in `[B, T]` which envs have not sent their last observations with step `t`.

    Raises:
        BadAnswer: `missing` is `None`: they are required.
    """
    envs = ends.envs[ends.lacks_final]
    if missing is not None:
        missing[envs, t] = True
    elif len(envs):
        raise no_final_observation()


def bad_answer(error: Exception, env: Any, form: str) -> BadAnswer:
    """Return the error of an env that returned an invalid value.

    Args:
        error: raised when the value was read.
        env: the env.
        form: the signature that its API requires, in one sentence.
    """
    message = f"no entry {error}" if isinstance(error, KeyError) else str(error)
    bad_answer = BadAnswer(f"{env}: {message}; {form}")
    bad_answer.__cause__ = error
    return bad_answer


def rewards_of(returned: Any, num_envs: int = 1, whose: str = "") -> Array:
    """Return rewards `[B]` as an array; a single reward may be an array of one element.

    Raises:
        ValueError: not one number for each env, or a finite number beyond the range of float32.
    """
    rewards = np.asarray(returned)
    if rewards.dtype.kind not in "fiub" or rewards.size != num_envs:
        raise ValueError(f"the env returned the reward {brief(returned)}{whose}; it must be one number for each env")
    rewards = rewards.reshape(num_envs)
    if rewards.dtype == np.float64 and not np.vdot(rewards, rewards) < LARGEST_REWARD**2:
        lost = first_unrepresentable(rewards, _FLOAT32)
        if lost is not None:
            raise ValueError(f"the env returned the reward {lost}{whose}, which float32 cannot hold; scale it down")
    return rewards


def flags_of(name: str, returned: Any, num_envs: int = 1) -> Array:
    """Return end flags as a bool array `[B]`.

    Raises:
        ValueError: not one of True, False, 0 and 1 for each env.
    """
    flags = np.asarray([returned]) if type(returned) is bool else np.asarray(returned)
    if flags.dtype.kind == "b" and flags.shape == (num_envs,):
        return flags
    if flags.size != num_envs or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise ValueError(f"the env returned {name}={brief(returned)}; it must be True or False for each env")
    return flags.reshape(num_envs).astype(np.bool_, copy=False)
