"""How a policy's actions become the envs': they are rescaled and clipped.

policy ──raw action──▶ batch
└──▶ unsquash (normalize_actions) ──▶ clip (clip_actions) ──▶ env
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from gymnasium import spaces

from swath.rollout.spaces import Array, Converter, Leaf, Leaves, action_leaves, first_unrepresentable
from swath.rollout_workers.nests import as_array

Transform = Callable[[Array], Array]


def action_processor(space: spaces.Space[Any], *, normalize: bool, clip: bool) -> Callable[[Leaves], Leaves] | None:
    """Return a function from action leaves `[B, …]` of a policy to the envs' actions, in the dtypes of their spaces.

    Return None if it would change nothing. Leaves that need no change are passed on.

    Args:
        space: the action space of one env, nested or not.
        normalize: the policy's numbers are about -1 to 1 where a Box of floats is bounded on all sides, and are
            brought to its bounds; in a Box of integers they count from its lower bounds. Other leaves are unchanged.
        clip: then clip to the bounds of a Box.
    """
    all_steps = [_transforms(leaf, normalize=normalize, clip=clip) for leaf in action_leaves(space)]
    if not any(all_steps):
        return None
    return lambda leaves: [reduce(_then, steps, leaf) for leaf, steps in zip(leaves, all_steps, strict=True)]


def answer_leaves(space: spaces.Space[Any], *, normalize: bool) -> tuple[Leaf, ...]:
    """Return the leaves of an action space in the dtypes of what policies answer.

    A leaf has the dtype of its space, or int64 where counts from the lower bounds of a Box of integers exceed that.

    Args:
        space: the action space of one env, nested or not.
        normalize: actions in a Box of integers count from its lower bounds.
    """
    wide = np.dtype(np.int64)
    leaves = action_leaves(space)
    return tuple(replace(leaf, dtype=wide) if normalize and _counts_exceed(leaf) else leaf for leaf in leaves)


def _counts_exceed(leaf: Leaf) -> bool:
    space = leaf.space
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.signedinteger):
        return False
    largest = max(int(high) - int(low) for high, low in zip(space.high.flat, space.low.flat, strict=True))
    return np.iinfo(leaf.dtype).max < largest <= np.iinfo(np.int64).max


def check_actions(name: str, leaves: Sequence[Leaf], answer: Any, n_rows: int) -> Leaves:
    """Return the action leaves `[n, …]` of a policy's answer, in their dtypes.

    Args:
        name: of the policy, for messages.
        leaves: of the action space, by `answer_leaves`.
        answer: a nest of batches, or a list of one action per row.
        n_rows: how many observations the policy has got.

    Raises:
        ValueError: not one row per observation, or actions of another shape.
        TypeError: no numbers, or numbers that the space's dtype would change.
    """
    one_by_one = isinstance(answer, list)
    actions: Leaves = []
    for leaf in leaves:
        if one_by_one:
            action = as_array([reduce(getitem, leaf.path, row) for row in answer])
        else:
            action = as_array(reduce(getitem, leaf.path, answer))
        wanted = (n_rows, *leaf.shape)
        if action.shape != wanted:
            raise ValueError(f"{name} answered actions of shape {action.shape}; wanted {wanted}, for {leaf.space}")
        if action.dtype != leaf.dtype:
            lost = first_unrepresentable(action, leaf.dtype) if action.dtype.kind in "biuf" else action.dtype
            if lost is not None:
                dtypes = f"actions of dtype {action.dtype}; {leaf.space} wants {leaf.dtype}"
                raise TypeError(f"{name} answered {dtypes}, which cannot hold {lost}")
            action = action.astype(leaf.dtype)
        actions.append(action)
    return actions


def reward_clip(clip_rewards: bool | float | None) -> Transform | None:
    """Return the function that the setting `clip_rewards` applies to rewards; None if it does nothing.

    True takes the sign, a number x clips to `[-x, x]`; the dtype is kept.
    """
    if clip_rewards is None or clip_rewards is False:
        return None
    if clip_rewards is True:
        return np.sign
    return lambda rewards: np.clip(rewards, -clip_rewards, clip_rewards)


def _transforms(leaf: Leaf, *, normalize: bool, clip: bool) -> list[Transform]:
    """Return the steps that bring a leaf's actions to the envs, in order."""
    space = leaf.space
    if not isinstance(space, spaces.Box):
        return []
    low, high = space.low, space.high
    is_integer = np.issubdtype(space.dtype, np.integer)
    if is_integer and space.dtype.itemsize < 8:  # sums of both must not wrap around
        low, high = low.astype(np.int64), high.astype(np.int64)
    steps: list[Transform] = []
    if normalize and space.is_bounded("both"):
        steps.append(_unsquash(space, low))
    if clip:
        steps.append(lambda action: np.clip(action, low, high))
    if not steps:
        return []
    if is_integer:
        return [*steps, Converter(leaf, "policy")]
    return [*steps, lambda action: action.astype(space.dtype, copy=False)]


def _unsquash(space: spaces.Box, low: Array) -> Transform:
    high = space.high
    if not np.issubdtype(space.dtype, np.floating):
        return lambda action: low + action
    exact, half = low.astype(np.float64), high.astype(np.float64) / 2 - low.astype(np.float64) / 2
    return lambda action: np.clip(exact + (action + 1.0) * half, low, high)


def _then(action: Array, step: Transform) -> Array:
    return step(action)


def unscale_actions(space: spaces.Space[Any], actions: Array) -> Array:
    """Invert `normalize` for actions `[n, …]` that were not clipped."""
    if not isinstance(space, spaces.Box) or not space.is_bounded("both"):
        return actions
    if np.issubdtype(space.dtype, np.integer):
        return actions.astype(np.int64) - space.low
    span = space.high.astype(np.float64) - space.low
    return np.asarray(2 * (actions - space.low) / np.where(span > 0, span, 1) - 1, dtype=space.dtype)
