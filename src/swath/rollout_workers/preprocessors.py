"""Observations of any space as arrays that networks take.

    Discrete, MultiDiscrete   one-hot, float32          Box, MultiBinary   as they are
    Dict, Tuple               one float32 vector: its parts in order, one-hot or flattened

The work is done on batches: leaves `[B, …]`, as hosts hand them out, become one array `[B, …]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from swath.rollout.spaces import Array, Leaf, Leaves, packer, plain_leaves
from swath.rollout_workers.nests import nested

Space = spaces.Space[Any]


class ProcessedSpace(spaces.Box):
    """The space of processed observations.

    Attributes:
        original_space: the one that they come from.
    """

    def __init__(self, low: Array, high: Array, original_space: Space) -> None:
        super().__init__(low, high, dtype=np.float32)
        self.original_space = original_space


class Preprocessor(ABC):
    """Turns observations of one space into those of another.

    Attributes:
        space: of what comes in.
        observation_space: of what comes out; with the attribute `original_space` if that is another.
        leaves: the arrays of which an observation consists, in the order in which batches of them are expected.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.leaves = plain_leaves(space, "observation")
        self.observation_space = self._processed_space()
        self._pack = packer(self.leaves)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of a processed observation; None if it is nested."""
        return self.observation_space.shape

    def transform_batch(self, leaves: Leaves) -> Any:
        """Processed observations `[B, …]` from leaves `[B, …]`.

        Raises:
            ValueError: a value that is no member of its space, where that matters.
        """
        for error in self.strays(leaves).values():
            raise error
        return self.transform_members(leaves)

    @abstractmethod
    def transform_members(self, leaves: Leaves) -> Any:
        """As `transform_batch`, of observations among which there are no strays."""

    def strays(self, leaves: Leaves) -> dict[int, ValueError]:  # noqa: ARG002  others have some
        """Rows of leaves `[B, …]` that are no members of the space, where that matters, with what is wrong."""
        return {}

    def transform(self, observation: Any) -> Any:
        """One processed observation."""
        return self.transform_batch(self._pack([observation]))[0]

    @abstractmethod
    def _processed_space(self) -> Space: ...


class NoPreprocessor(Preprocessor):
    """Leaves observations as they are; those of Dict and Tuple spaces stay nested."""

    def transform_members(self, leaves: Leaves) -> Any:
        """The leaves themselves, nested as the space is."""
        return nested(self.space, leaves)

    def transform(self, observation: Any) -> Any:
        """The observation itself."""
        return observation

    def _processed_space(self) -> Space:
        return self.space


class VectorPreprocessor(Preprocessor):
    """Makes one float32 vector of each observation."""

    def transform_members(self, leaves: Leaves) -> Array:
        """Vectors `[B, size]`."""
        out = np.zeros((len(leaves[0]), self._cuts[-1]), dtype=np.float32)
        for values, part, (begin, end) in zip(leaves, self._parts, pairwise(self._cuts), strict=True):
            part.write(values, out[:, begin:end])
        return out

    def strays(self, leaves: Leaves) -> dict[int, ValueError]:
        """Rows with a choice that there is not."""
        found: dict[int, ValueError] = {}
        for i, choices in self._choices:
            values = leaves[i]
            outside = choices.outside(values)
            if outside.any():
                found |= {row: _stray(values[row], choices.space) for row in outside.nonzero()[0].tolist()}
        return found

    def _processed_space(self) -> Space:
        parts = self._parts = [_part_of(leaf) for leaf in self.leaves]
        self._choices = [(i, part) for i, part in enumerate(parts) if isinstance(part, Choices)]
        self._cuts = [0, *accumulate(len(part.low) for part in parts)]
        low, high = (np.concatenate(bounds) for bounds in ([part.low for part in parts], [part.high for part in parts]))
        return ProcessedSpace(low, high, self.space)


class OneHotPreprocessor(VectorPreprocessor):
    """Makes one-hot vectors of Discrete and MultiDiscrete observations."""


class FlatteningPreprocessor(VectorPreprocessor):
    """Makes vectors of Dict and Tuple observations."""


def get_preprocessor(space: Space) -> type[Preprocessor]:
    """The class of preprocessors that observations of this space need."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return OneHotPreprocessor
    return FlatteningPreprocessor if isinstance(space, spaces.Dict | spaces.Tuple) else NoPreprocessor


class Part:
    """What becomes of a leaf `[B, …]`: some columns of a vector, just as they are.

    Args:
        space: of one value.
        low: lower float32 bounds `[k]` of what is written.
        high: the upper ones.
    """

    def __init__(self, space: Space, low: Array, high: Array) -> None:
        self.space, self.low, self.high = space, low, high

    def write(self, values: Array, out: Array) -> None:
        """Write them into their columns `[B, k]`, which are zeros."""
        out[...] = values.reshape(out.shape)


class Choices(Part):
    """Values of a Discrete or MultiDiscrete space: one-hot columns of each choice.

    Args:
        space: of one value.
        starts: the first of each choice, `[c]`.
        sizes: how many there are of each, `[c]`.
    """

    def __init__(self, space: Space, starts: Array, sizes: Array) -> None:
        total = int(sizes.sum())
        super().__init__(space, np.zeros(total, dtype=np.float32), np.ones(total, dtype=np.float32))
        self._starts, self._sizes = starts, sizes
        self._first_columns = np.cumsum(sizes) - sizes - starts

    def write(self, values: Array, out: Array) -> None:
        """Write ones where the choices are."""
        np.put_along_axis(out, values.reshape(len(values), -1) + self._first_columns, 1, axis=1)

    def outside(self, values: Array) -> Array:
        """Which rows have a choice that there is not, `[B]`."""
        index = values.reshape(len(values), -1) - self._starts
        return np.asarray(((index < 0) | (index >= self._sizes)).any(axis=1))


def _part_of(leaf: Leaf) -> Part:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return Choices(space, np.array([space.start]), np.array([space.n]))
    if isinstance(space, spaces.MultiDiscrete):
        return Choices(space, space.start.reshape(-1), space.nvec.reshape(-1))
    if isinstance(space, spaces.Box):
        with np.errstate(over="ignore"):  # what float32 cannot hold is unbounded
            return Part(space, np.float32(space.low).reshape(-1), np.float32(space.high).reshape(-1))
    size = int(np.prod(leaf.shape))
    return Part(space, np.zeros(size, dtype=np.float32), np.ones(size, dtype=np.float32))


def _stray(value: Any, space: Space) -> ValueError:
    return ValueError(f"the observation {value} is not in {space}; mend the env or its space")
