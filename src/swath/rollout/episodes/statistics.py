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

    def count_fragment(
        self, reward: Array, ids: Array, counts: Array, last: Array, valid: Array | None = None
    ) -> EpisodeArray:
        """The episodes that end in the next fragment. One that another follows without an end was given up.

        Args:
            reward: `[B, T]`.
            ids: int64 `[B, T]` trajectory ids.
            counts: int64 `[B, T]`, how many steps of the episode came before the row: at 0 one begins.
            last: bool `[B, T]`: the row ends its episode.
            valid: bool `[B, T]`: the row is a transition; `None` if all are.
        """
        begins, values = counts == 0, np.array(reward, dtype=np.float64)
        if valid is not None:
            begins, last, values = begins & valid, last & valid, np.where(valid, values, 0)
        values[:, 0] += np.where(begins[:, 0], 0, self.returns)
        begins[:, 0] = True
        starts, ends = np.flatnonzero(begins), np.flatnonzero(last)
        sums = np.add.reduceat(values.reshape(-1), starts)
        self.returns = sums[np.cumsum(np.count_nonzero(begins, axis=1)) - 1]
        envs, steps = np.divmod(ends, last.shape[1])
        ends = ends[np.argsort(steps * len(last) + envs)]
        episodes = np.empty(len(ends), EPISODE)
        episodes["trajectory"], episodes["length"] = ids.reshape(-1)[ends], counts.reshape(-1)[ends] + 1
        episodes["total"] = sums[np.searchsorted(starts, ends, side="right") - 1]
        return episodes


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
