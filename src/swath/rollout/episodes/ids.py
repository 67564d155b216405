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
        starts = np.concatenate([self._fresh[:, None], last[:, :-1]], axis=1)
        if valid is not None:
            starts[:, 1:] |= ~valid[:, :-1]
            starts &= valid
        steps, envs = np.nonzero(starts.T)
        given = np.empty(starts.shape, dtype=np.int64)
        given[:, 0] = self._current
        given[envs, steps] = self.next_id + np.arange(len(steps))
        self._counter += len(steps)
        at = np.arange(starts.size).reshape(starts.shape)
        begun = np.maximum.accumulate(np.where(starts, at, at[:, :1]).reshape(-1)).reshape(starts.shape)
        origin = at.copy()
        origin[:, 0] -= np.where(starts[:, 0], 0, self._length)
        ids, counts = given.reshape(-1)[begun], at - origin.reshape(-1)[begun]
        self._current, self._length, self._fresh = ids[:, -1].copy(), counts[:, -1] + 1, last[:, -1].copy()
        if valid is not None:
            self._fresh |= ~valid[:, -1]
            ids[~valid] = NO_TRAJECTORY
        return ids, counts
