"""Episodes: their ids, returns and lengths of running ones, records of ended ones, means over the last hundred.

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
MAX_WORKERS = 1 << (63 - WORKER_BITS)
NO_TRAJECTORY = -1
N_EPISODES_IN_MEANS = 100

# Episodes that ended, in order of their ends: an array `[n]` with these fields.
EpisodeArray: TypeAlias = NDArray[np.void]

EPISODE_DTYPE = np.dtype([("trajectory", np.int64), ("total", np.float64), ("length", np.int64)])
NO_EPISODES: EpisodeArray = np.empty(0, EPISODE_DTYPE)


def worker_of_id(trajectory: int) -> int:
    """Return the index of the worker that assigned an id."""
    return trajectory >> WORKER_BITS


def worker_and_life(trajectory: int) -> tuple[int, int]:
    """Return the index and the life of the worker that assigned an id."""
    return worker_of_id(trajectory), (trajectory >> LIFE_BITS) & (2 ** (WORKER_BITS - LIFE_BITS) - 1)


def concatenate(parts: Iterable[EpisodeArray]) -> EpisodeArray:
    """Concatenate the episodes of several fragments."""
    non_empty = [part for part in parts if len(part)]
    return np.concatenate(non_empty) if non_empty else NO_EPISODES


def episodes_from_bytes(packed: bytes) -> EpisodeArray:
    """Return the episodes of `episodes.tobytes()`; bytes travel in a fortieth of the time that an array takes."""
    return np.frombuffer(packed, EPISODE_DTYPE)


class TrajectoryIds:
    """Assigns trajectory ids, in order of the first step and then of the env, and sums up each episode.

    An id is `worker·2⁴⁷ + life·2³² + counter`.

    Args:
        num_envs: B.
        worker: index of the worker.
        life: life number of the worker.
        counts_steps: whether to return step counts.

    Attributes:
        ended_episodes: the episodes that ended in the rows of the last `label`.
        n_ids: number of ids assigned.
    """

    def __init__(self, num_envs: int, *, worker: int = 0, life: int = 0, counts_steps: bool = False) -> None:
        self._base, self._counts_steps, self.n_ids = (worker << WORKER_BITS) + (life << LIFE_BITS), counts_steps, 0
        # Ids, lengths and returns of the running episodes; envs that begin another episode with their next row.
        self._current, self._length = np.zeros((2, num_envs), dtype=np.int64)
        self._total, self._fresh = np.zeros(num_envs), np.ones(num_envs, dtype=np.bool_)
        self.ended_episodes = NO_EPISODES

    @property
    def next_id(self) -> int:
        """Return the next id, which is above all assigned ones."""
        return self._base + self.n_ids

    def begin(self, envs: Sequence[int] | None = None) -> None:
        """Begin new episodes with the next rows of the envs, by default of all."""
        self._fresh[slice(None) if envs is None else list(envs)] = True

    def label(self, reward: Array, last: Array, valid: Array | None = None) -> tuple[Array, Array | None]:
        """Return ids and step counts of the next T rows.

        Args:
            reward: `[B, T]`.
            last: bool `[B, T]`: the row ends its episode.
            valid: bool `[B, T]`: the row is a transition; `None` if all are. An episode begins after a row that is not.

        Returns:
            int64 `[B, T]` ids (-1 where not valid), and int64 `[B, T]`: number of earlier steps of the episode, or
            `None` unless `counts_steps`.
        """
        n_envs, n_steps = last.shape
        heads = np.ones(last.shape, dtype=np.bool_)
        heads[:, 1:] = last[:, :-1]
        fresh = self._fresh
        if valid is not None:
            heads[:, 1:] |= ~valid[:, :-1]
            heads[:, 1:] &= valid[:, 1:]
            fresh, reward = fresh & valid[:, 0], np.where(valid, reward, 0)
        at = np.flatnonzero(heads)  # first rows of the stretches of one episode in one env
        (envs, steps), lengths = np.divmod(at, n_steps), np.diff(at, append=last.size)
        n_valid = lengths if valid is None else np.add.reduceat(valid.reshape(-1), at, dtype=np.int64)
        begin = np.flatnonzero((steps > 0) | fresh[envs])
        begin = begin[np.argsort(steps[begin] * n_envs + envs[begin])]
        trajectory, before, total = self._current[envs], self._length[envs], self._total[envs]
        trajectory[begin], before[begin], total[begin] = self.next_id + np.arange(len(begin)), 0, 0
        self.n_ids += len(begin)
        total += np.add.reduceat(reward.reshape(-1).astype(np.float64), at)
        ids, counts = np.repeat(trajectory, lengths).reshape(last.shape), None
        if self._counts_steps:
            counts = (np.repeat(before - at, lengths) + np.arange(last.size)).reshape(last.shape)
        over = np.flatnonzero(last.reshape(-1)[at + n_valid - 1] & (n_valid > 0))
        over = over[np.argsort((steps + n_valid)[over] * n_envs + envs[over])]
        self.ended_episodes = np.empty(len(over), EPISODE_DTYPE)
        for name, values in (("trajectory", trajectory), ("total", total), ("length", before + n_valid)):
            self.ended_episodes[name] = values[over]
        latest = np.append(np.flatnonzero(steps == 0)[1:], len(at)) - 1
        self._current, self._length, self._total = trajectory[latest], (before + n_valid)[latest], total[latest]
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
        """Set returns and lengths of the envs to 0, where episodes begin."""
        self.returns[envs], self.lengths[envs] = 0, 0

    def count_step(self, reward: Array, void: Sequence[int] = ()) -> None:
        """Count a step of every env, with rewards `[B]`, except envs whose row is void."""
        valid: Array | bool = True
        if len(void):
            valid = np.ones(len(self.lengths), dtype=np.bool_)
            valid[list(void)] = False
        self.lengths += valid
        np.add(self.returns, reward, out=self.returns, where=valid)


class EpisodeLog:
    """The number of episodes that ended, and means over the last 100 of them."""

    def __init__(self) -> None:
        self.finished = 0
        self._last = NO_EPISODES

    @property
    def means(self) -> tuple[float, float] | None:
        """Return mean return and mean steps of the last 100 episodes; `None` before the first."""
        return (float(last["total"].mean()), float(last["length"].mean())) if len(last := self._last) else None

    def add(self, episodes: EpisodeArray) -> None:
        """Add episodes in order of their ends."""
        if len(episodes):
            self._last = np.concatenate([self._last, episodes[-N_EPISODES_IN_MEANS:]])[-N_EPISODES_IN_MEANS:]
            self.finished += len(episodes)
