"""Trajectory ids: which episode each row belongs to, unique over workers, lives, batches and resets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swath.rollout.spaces import Array

WORKER_BITS, LIFE_BITS = 47, 32
MOST_WORKERS = 1 << (63 - WORKER_BITS)
NO_TRAJECTORY = -1


def maker_of(trajectory: int) -> int:
    """Index of the worker that gave an id."""
    return trajectory >> WORKER_BITS


def life_of(trajectory: int) -> tuple[int, int]:
    """Index and life of the worker that gave an id."""
    return maker_of(trajectory), (trajectory >> LIFE_BITS) & (2 ** (WORKER_BITS - LIFE_BITS) - 1)


class TrajectoryIds:
    """Gives ids in order of start, in env order at one moment, and counts the steps of each episode.

    An id is `worker·2⁴⁷ + life·2³² + counter`.

    Args:
        num_envs: B.
        worker: index of the worker.
        life: which life of that worker.
    """

    def __init__(self, num_envs: int, *, worker: int = 0, life: int = 0) -> None:
        self._base = (worker << WORKER_BITS) + (life << LIFE_BITS)
        self._counter = 0
        self._current = np.full(num_envs, NO_TRAJECTORY, dtype=np.int64)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._fresh = np.ones(num_envs, dtype=np.bool_)

    @property
    def next_id(self) -> int:
        """Above every id given."""
        return self._base + self._counter

    @property
    def gave_any(self) -> bool:
        """Whether an id was given."""
        return self._counter > 0

    def begin(self, envs: Sequence[int] | None = None) -> None:
        """The next rows of these envs (all by default) belong to new episodes."""
        self._fresh[slice(None) if envs is None else list(envs)] = True

    def label(self, last: Array, valid: Array | None = None) -> tuple[Array, Array]:
        """Ids and step counts of the next T rows.

        Args:
            last: bool `[B, T]`: the row ends its episode.
            valid: bool `[B, T]`: the row is a transition; `None` if all are. An episode begins behind a row that is
                none.

        Returns:
            int64 `[B, T]` ids (-1 where not valid), and int64 `[B, T]`: how many steps of the episode came before.
        """
        n_steps = last.shape[1]
        heads = np.ones(last.shape, dtype=np.bool_)
        heads[:, 1:] = last[:, :-1]
        fresh = self._fresh
        if valid is not None:
            heads[:, 1:] |= ~valid[:, :-1]
            heads[:, 1:] &= valid[:, 1:]
            fresh = fresh & valid[:, 0]
        at = np.flatnonzero(heads)  # where the stretches of one episode in one env begin
        envs, steps = np.divmod(at, n_steps)
        begin = np.flatnonzero((steps > 0) | fresh[envs])
        begin = begin[np.argsort(steps[begin] * len(last) + envs[begin])]
        given, before = self._current[envs], self._length[envs]
        given[begin], before[begin] = self.next_id + np.arange(len(begin)), 0
        self._counter += len(begin)
        lengths = np.diff(at, append=last.size)
        ids = np.repeat(given, lengths).reshape(last.shape)
        counts = np.repeat(before - at, lengths).reshape(last.shape)
        counts += np.arange(last.size).reshape(last.shape)
        self._current, self._length, self._fresh = ids[:, -1].copy(), counts[:, -1] + 1, last[:, -1].copy()
        if valid is not None:
            self._fresh |= ~valid[:, -1]
            ids[~valid] = NO_TRAJECTORY
        return ids, counts
