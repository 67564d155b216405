"""Observations of any space as arrays that networks take.

    Discrete, MultiDiscrete   one-hot, float32          Box, MultiBinary   as they are
    Dict, Tuple               one float32 vector: its parts in order, one-hot or flattened

The work is done on batches: leaves `[B, …]`, as hosts hand them out, become one array `[B, …]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
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

    @abstractmethod
    def transform_batch(self, leaves: Leaves) -> Any:
        """Processed observations `[B, …]` from leaves `[B, …]`.

        Raises:
            ValueError: a value that is no member of its space, where that matters.
        """

    def transform(self, observation: Any) -> Any:
        """One processed observation."""
        return self.transform_batch(self._pack([observation]))[0]

    @abstractmethod
    def _processed_space(self) -> Space: ...


class NoPreprocessor(Preprocessor):
    """Leaves observations as they are; those of Dict and Tuple spaces stay nested."""

    def transform_batch(self, leaves: Leaves) -> Any:
        """The leaves themselves, nested as the space is."""
        return nested(self.space, leaves)

    def transform(self, observation: Any) -> Any:
        """The observation itself."""
        return observation

    def _processed_space(self) -> Space:
        return self.space


class VectorPreprocessor(Preprocessor):
    """Makes one float32 vector of each observation."""

    def transform_batch(self, leaves: Leaves) -> Array:
        """Vectors `[B, size]`."""
        out = np.zeros((len(leaves[0]), self._cuts[-1]), dtype=np.float32)
        for values, write, (begin, end) in zip(leaves, self._writes, pairwise(self._cuts), strict=True):
            write(values, out[:, begin:end])
        return out

    def _processed_space(self) -> Space:
        parts = [_vector_of(leaf) for leaf in self.leaves]
        self._writes = [write for write, _, _ in parts]
        self._cuts = [0, *accumulate(len(low) for _, low, _ in parts)]
        low, high = (np.concatenate(bounds) for bounds in ([part[1] for part in parts], [part[2] for part in parts]))
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


Write = Callable[[Array, Array], None]
"""Writes a leaf `[B, …]` into its columns `[B, k]`, which are zeros."""


def _vector_of(leaf: Leaf) -> tuple[Write, Array, Array]:
    """How to write a leaf, and the float32 bounds `[k]` of what is written."""
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return _one_hot(space, np.array([space.start]), np.array([space.n]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space, space.start.reshape(-1), space.nvec.reshape(-1))
    if isinstance(space, spaces.Box):
        with np.errstate(over="ignore"):  # what float32 cannot hold is unbounded
            return _flat, np.float32(space.low).reshape(-1), np.float32(space.high).reshape(-1)
    size = int(np.prod(leaf.shape))
    return _flat, np.zeros(size, dtype=np.float32), np.ones(size, dtype=np.float32)


def _flat(values: Array, out: Array) -> None:
    out[...] = values.reshape(out.shape)


def _one_hot(space: Space, starts: Array, sizes: Array) -> tuple[Write, Array, Array]:
    total, offsets = int(sizes.sum()), np.cumsum(sizes) - sizes

    def write(values: Array, out: Array) -> None:
        index = values.reshape(len(values), -1) - starts
        outside = ((index < 0) | (index >= sizes)).any(axis=1)
        if outside.any():
            raise ValueError(f"the observation {values[outside.argmax()]} is not in {space}; mend the env or its space")
        np.put_along_axis(out, index + offsets, 1, axis=1)

    return write, np.zeros(total, dtype=np.float32), np.ones(total, dtype=np.float32)
