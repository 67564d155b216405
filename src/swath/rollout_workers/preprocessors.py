"""Preprocessors, which turn observations of any space into arrays that networks take.

    Discrete, MultiDiscrete   one-hot, float32          Box, MultiBinary   unchanged
    Dict, Tuple               one float32 vector: its parts in order, one-hot or flattened

They work on batches: leaves `[B, …]` of hosts become one array `[B, …]`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from swath.keys import ACTION_MASK
from swath.rollout.random_policy import require_mask
from swath.rollout.spaces import Array, Converter, Leaves, build_value, packer, plain_leaves

Space = spaces.Space[Any]

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
        found = {i: _choices_of(leaf.space) for i, leaf in enumerate(self.leaves)}
        self._choices = {i: choices for i, choices in found.items() if choices is not None}
        self._cuts = [0, *accumulate(spaces.flatdim(leaf.space) for leaf in self.leaves)]
        self._converters = [Converter(replace(leaf, dtype=np.dtype(np.float32))) for leaf in self.leaves]
        flat: Any = spaces.flatten_space(space)
        with np.errstate(over="ignore"):  # what float32 cannot hold is unbounded
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
