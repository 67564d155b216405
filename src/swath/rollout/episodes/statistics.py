"""Episode statistics: running sums of B envs, what came of the episodes that ended, means over the last hundred.

step by step           begin(envs), count_step(reward)  ──▶ returns, lengths of the running episodes
fragment by fragment   count_fragment(reward, labels)   ──▶ those that end in it, in order of their ends
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from swath.rollout.spaces import Array

REMEMBERED = 100

# Episodes that ended, in order of their ends: an array `[n]` with these fields.
EpisodeArray: TypeAlias = NDArray[np.void]

EPISODE = np.dtype([("trajectory", np.int64), ("total", np.float64), ("length", np.int64)])
NO_EPISODES: EpisodeArray = np.empty(0, EPISODE)


def joined(parts: Iterable[EpisodeArray]) -> EpisodeArray:
    """Those of several fragments, one fragment after another."""
    some = [part for part in parts if len(part)]
    return np.concatenate(some) if some else NO_EPISODES


def unpacked(packed: bytes) -> EpisodeArray:
    """What `episodes.tobytes()` was made of: bytes travel in a fortieth of the time that an array takes."""
    return np.frombuffer(packed, EPISODE)


class EpisodeSums:
    """The running episodes of B envs, by array functions; fed either step by step or fragment by fragment.

    Args:
        num_envs: B.

    Attributes:
        returns: float64 `[B]`, the rewards so far.
        lengths: int64 `[B]`, the steps so far; fragments bring counts of their own.
    """

    def __init__(self, num_envs: int) -> None:
        self.returns, self.lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=np.int64)

    def begin(self, envs: Sequence[int] | Array) -> None:
        """Episodes begin in these envs."""
        self.returns[envs], self.lengths[envs] = 0, 0

    def count_step(self, reward: Array, void: Sequence[int] = ()) -> None:
        """Count a step of every env, rewards `[B]`, but of those whose row is void."""
        made: Array | bool = True
        if len(void):
            made = np.ones(len(self.lengths), dtype=np.bool_)
            made[list(void)] = False
        self.lengths += made
        np.add(self.returns, reward, out=self.returns, where=made)


class EpisodeLog:
    """Episodes that ended: how many, and means over the last 100."""

    def __init__(self) -> None:
        self.finished = 0
        self._last = NO_EPISODES

    @property
    def mean_return(self) -> float | None:
        """Mean over the last 100 episodes; `None` before the first."""
        return float(last["total"].mean()) if len(last := self._last) else None

    @property
    def mean_length(self) -> float | None:
        """Mean steps of the last 100 episodes; `None` before the first."""
        return float(last["length"].mean()) if len(last := self._last) else None

    def add(self, episodes: EpisodeArray) -> None:
        """These have ended, one after another."""
        if len(episodes):
            self._last = np.concatenate([self._last, episodes[-REMEMBERED:]])[-REMEMBERED:]
            self.finished += len(episodes)
