"""Processing between envs and policies: observations become arrays for networks, actions become values for envs.

    env ──▶ Preprocessor ──▶ (filter) ──▶ policy ──raw action──▶ batch
                                            └──▶ unsquash (normalize_actions) ──▶ clip (clip_actions) ──▶ env

    Discrete, MultiDiscrete   one-hot, float32          Box, MultiBinary   unchanged
    Dict, Tuple               one float32 vector: its parts in order, one-hot or flattened

All work on batches: leaves `[B, …]`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from swath.keys import ACTION_MASK
from swath.rollout.random_policy import require_mask
from swath.rollout.spaces import Array, Converter, Leaf, Leaves, action_leaves, build_value, packer, plain_leaves

Space = spaces.Space[Any]
Transform = Callable[[Array], Array]

# Spaces whose values are one array.
ARRAYS = (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)


class Preprocessor(ABC):
    """Turns observations of one space into observations of another.

    Attributes:
        space: of the env's observations.
        observation_space: of processed observations; with the attribute `original_space` if that is another.
        leaves: the arrays of an observation, in the order of a batch's leaves.
    """

    def __init__(self, space: Space) -> None:
        self.space = self.observation_space = space
        self.leaves = plain_leaves(space, "observation")

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Return the shape of a processed observation; None if it is nested."""
        return self.observation_space.shape

    @abstractmethod
    def transform_batch(self, leaves: Leaves) -> Any:
        """Process leaves `[B, …]` to observations `[B, …]`.

        Raises:
            ValueError: one is no member of its space, where that matters.
        """

    def transform(self, observation: Any) -> Any:
        """Process one observation; raise as `transform_batch` does."""
        return self.transform_batch(packer(self.leaves)([observation]))[0]


class NoPreprocessor(Preprocessor):
    """Leaves observations unchanged; observations of Dict and Tuple spaces stay nested."""

    def transform_batch(self, leaves: Leaves) -> Any:
        """Return the leaves themselves, nested like the space."""
        return build_value(self.space, iter(leaves))

    def transform(self, observation: Any) -> Any:
        """Return the observation itself."""
        return observation


class VectorPreprocessor(Preprocessor):
    """Makes one float32 vector of each observation."""

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        choices_by_leaf = {i: _choices_of(leaf.space) for i, leaf in enumerate(self.leaves)}
        self._choices = {i: choices for i, choices in choices_by_leaf.items() if choices is not None}
        self._cuts = [0, *accumulate(spaces.flatdim(leaf.space) for leaf in self.leaves)]
        self._converters = [Converter(replace(leaf, dtype=np.dtype(np.float32))) for leaf in self.leaves]
        flat: Any = spaces.flatten_space(space)
        with np.errstate(over="ignore"):  # bounds beyond float32 become infinite
            processed: Any = spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
        processed.original_space = space
        self.observation_space = processed

    def transform_batch(self, leaves: Leaves) -> Array:
        """Concatenate leaves `[B, …]` to vectors `[B, size]`.

        Raises:
            ValueError: a choice outside its space, or a number that float32 cannot hold.
        """
        out = np.zeros((len(leaves[0]), self._cuts[-1]), dtype=np.float32)
        for i, (values, (begin, end)) in enumerate(zip(leaves, pairwise(self._cuts), strict=True)):
            part = out[:, begin:end]
            if i in self._choices:
                starts, sizes = self._choices[i]
                index = values.reshape(len(values), -1) - starts
                stray = ((index < 0) | (index >= sizes)).any(axis=1)
                if stray.any():
                    space = self.leaves[i].space
                    raise ValueError(f"the observation {values[stray][0]} is not in {space}; fix the env or its space")
                np.put_along_axis(part, index + np.cumsum(sizes) - sizes, 1, axis=1)
            else:
                part[...] = self._converters[i](values).reshape(part.shape)
        return out


def mask_reader(space: Space, action_space: Space, name: str | None) -> Callable[[Any], Any] | None:
    """Find out how to read action masks `[…, n]`, as a view, of processed observations; `None` if these have none.

    Args:
        space: of processed observations; masks are the entry `"action_mask"` at the root of a Dict.
        action_space: of the actions that they mask.
        name: of the policy, for the message; `None` ignores a mask that does not fit.

    Raises:
        ValueError: a mask that has not one entry per choice.
    """
    original = getattr(space, "original_space", space)
    if not isinstance(original, spaces.Dict) or not isinstance(original.get(ACTION_MASK), ARRAYS):
        return None
    mask = original[ACTION_MASK]
    try:
        require_mask(action_space, mask.shape or (), str(name))
    except ValueError:
        if name is None:
            return None
        raise
    if original is space:
        return itemgetter(ACTION_MASK)
    names, size = list(original.spaces), math.prod(mask.shape or ())
    begin = sum(spaces.flatdim(original[before]) for before in names[: names.index(ACTION_MASK)])
    end = begin + spaces.flatdim(mask)
    step = (end - begin) // size  # 2 where each entry is a choice of two, one-hot
    columns = slice(begin + step - 1, end, step)
    return lambda processed: processed[..., columns]


def get_preprocessor(space: Space) -> type[Preprocessor]:
    """Return the class of preprocessors that observations of this space need."""
    is_vector = isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.Dict | spaces.Tuple)
    return VectorPreprocessor if is_vector else NoPreprocessor


def _choices_of(space: Space) -> tuple[Array, Array] | None:
    """Return the first value of each choice of a Discrete or MultiDiscrete space, and the numbers of values, `[c]`."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.start]), np.array([space.n])
    return (space.start.ravel(), space.nvec.ravel()) if isinstance(space, spaces.MultiDiscrete) else None


def action_processor(space: Space, *, normalize: bool, clip: bool) -> Callable[[Leaves], Leaves] | None:
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
    return lambda leaves: [
        reduce(lambda action, step: step(action), steps, leaf) for leaf, steps in zip(leaves, all_steps, strict=True)
    ]


def answer_leaves(space: Space, *, normalize: bool) -> tuple[Leaf, ...]:
    """Return the leaves of an action space in the dtypes of policies' answers.

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


def unscale_actions(space: Space, actions: Array) -> Array:
    """Invert `normalize` for actions `[n, …]` that were not clipped."""
    if not isinstance(space, spaces.Box) or not space.is_bounded("both"):
        return actions
    if np.issubdtype(space.dtype, np.integer):
        return actions.astype(np.int64) - space.low
    span = space.high.astype(np.float64) - space.low
    return np.asarray(2 * (actions - space.low) / np.where(span > 0, span, 1) - 1, dtype=space.dtype)
