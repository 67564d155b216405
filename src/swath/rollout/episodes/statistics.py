"""Episodes: their ids, running sums of B envs, what came of those that ended, means over the last hundred.

fragment by fragment   TrajectoryIds.label(reward, ends)   ──▶ ids of rows, the episodes that end
step by step           EpisodeSums.count_step(reward)      ──▶ returns, lengths of the running episodes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from swath.rollout.spaces import Array

WORKER_BITS, LIFE_BITS = 47, 32
MOST_WORKERS = 1 << (63 - WORKER_BITS)
NO_TRAJECTORY = -1
REMEMBERED = 100

# Episodes that ended, in order of their ends: an array `[n]` with these fields.
EpisodeArray: TypeAlias = NDArray[np.void]

EPISODE = np.dtype([("trajectory", np.int64), ("total", np.float64), ("length", np.int64)])
NO_EPISODES: EpisodeArray = np.empty(0, EPISODE)


def maker_of(trajectory: int) -> int:
    """Index of the worker that gave an id."""
    return trajectory >> WORKER_BITS


def life_of(trajectory: int) -> tuple[int, int]:
    """Index and life of the worker that gave an id."""
    return maker_of(trajectory), (trajectory >> LIFE_BITS) & (2 ** (WORKER_BITS - LIFE_BITS) - 1)


def joined(parts: Iterable[EpisodeArray]) -> EpisodeArray:
    """Those of several fragments, one fragment after another."""
    some = [part for part in parts if len(part)]
    return np.concatenate(some) if some else NO_EPISODES


def unpacked(packed: bytes) -> EpisodeArray:
    """What `episodes.tobytes()` was made of: bytes travel in a fortieth of the time that an array takes."""
    return np.frombuffer(packed, EPISODE)


class TrajectoryIds:
    """Gives ids in order of start, in env order at one moment, and sums up each episode.

    An id is `worker·2⁴⁷ + life·2³² + counter`.

    Args:
        num_envs: B.
        worker: index of the worker.
        life: which life of that worker.
        counted: whether step counts are wanted.

    Attributes:
        ended: the episodes that ended in the rows that were labelled last.
        given: how many ids it gave.
    """

    def __init__(self, num_envs: int, *, worker: int = 0, life: int = 0, counted: bool = False) -> None:
        self._base, self._counted, self.given = (worker << WORKER_BITS) + (life << LIFE_BITS), counted, 0
        # Of the running episodes: ids, rewards and steps so far; and which envs begin another with their next row.
        self._current, self._length = np.zeros((2, num_envs), dtype=np.int64)
        self._total, self._fresh = np.zeros(num_envs), np.ones(num_envs, dtype=np.bool_)
        self.ended = NO_EPISODES

    @property
    def next_id(self) -> int:
        """Above every id given."""
        return self._base + self.given

    def begin(self, envs: Sequence[int] | None = None) -> None:
        """The next rows of these envs (all by default) belong to new episodes."""
        self._fresh[slice(None) if envs is None else list(envs)] = True

    def label(self, reward: Array, last: Array, valid: Array | None = None) -> tuple[Array, Array | None]:
        """Ids and step counts of the next T rows.

        Args:
            reward: `[B, T]`.
            last: bool `[B, T]`: the row ends its episode.
            valid: bool `[B, T]`: the row is a transition; `None` if all are. An episode begins behind a row that is
                none.

        Returns:
            int64 `[B, T]` ids (-1 where not valid), and int64 `[B, T]`: how many steps of the episode came before, if
            that is counted.
        """
        n_envs, n_steps = last.shape
        heads = np.ones(last.shape, dtype=np.bool_)
        heads[:, 1:] = last[:, :-1]
        fresh = self._fresh
        if valid is not None:
            heads[:, 1:] |= ~valid[:, :-1]
            heads[:, 1:] &= valid[:, 1:]
            fresh, reward = fresh & valid[:, 0], np.where(valid, reward, 0)
        at = np.flatnonzero(heads)  # where the stretches of one episode in one env begin
        (envs, steps), lengths = np.divmod(at, n_steps), np.diff(at, append=last.size)
        made = lengths if valid is None else np.add.reduceat(valid.reshape(-1), at, dtype=np.int64)
        begin = np.flatnonzero((steps > 0) | fresh[envs])
        begin = begin[np.argsort(steps[begin] * n_envs + envs[begin])]
        given, before, total = self._current[envs], self._length[envs], self._total[envs]
        given[begin], before[begin], total[begin] = self.next_id + np.arange(len(begin)), 0, 0
        self.given += len(begin)
        total += np.add.reduceat(reward.reshape(-1).astype(np.float64), at)
        ids = np.repeat(given, lengths).reshape(last.shape)
        counts = (np.repeat(before - at, lengths) + np.arange(last.size)).reshape(last.shape) if self._counted else None
        over = np.flatnonzero(last.reshape(-1)[at + made - 1] & (made > 0))
        over = over[np.argsort((steps + made)[over] * n_envs + envs[over])]
        self.ended = np.empty(len(over), EPISODE)
        for name, of_all in (("trajectory", given), ("total", total), ("length", before + made)):
            self.ended[name] = of_all[over]
        latest = np.append(np.flatnonzero(steps == 0)[1:], len(at)) - 1
        self._current, self._length, self._total = given[latest], (before + made)[latest], total[latest]
        self._fresh = last[:, -1].copy()
        if valid is not None:
            self._fresh |= ~valid[:, -1]
            ids[~valid] = NO_TRAJECTORY
        return ids, counts


class EpisodeSums:
    """Returns and lengths of the running episodes of B envs, added up step by step.

    Args:
        num_envs: B.

    Attributes:
        returns: float64 `[B]`, the rewards so far.
        lengths: int64 `[B]`, the steps so far.
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
    def means(self) -> tuple[float, float] | None:
        """Mean return and mean steps of the last 100 episodes; `None` before the first."""
        return (float(last["total"].mean()), float(last["length"].mean())) if len(last := self._last) else None

    def add(self, episodes: EpisodeArray) -> None:
        """These have ended, one after another."""
        if len(episodes):
            self._last = np.concatenate([self._last, episodes[-REMEMBERED:]])[-REMEMBERED:]
            self.finished += len(episodes)
