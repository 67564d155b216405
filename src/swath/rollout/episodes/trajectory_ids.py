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
            valid: bool `[B, T]`: the row is a transition; `None` if all are.

        Returns:
            int64 `[B, T]` ids (-1 where not valid), and int64 `[B, T]`: how many steps of the episode came before.
        """
        return self._label_starts(self._starts(last, valid), last, valid)

    def _starts(self, last: Array, valid: Array | None) -> Array:
        """Rows that begin an episode: valid, and the row before ended one or is no transition."""
        before = np.concatenate([self._fresh[:, None], last[:, :-1]], axis=1)
        if valid is None:
            return before
        before[:, 1:] |= ~valid[:, :-1]
        starts: Array = before & valid
        return starts

    def _label_starts(self, starts: Array, last: Array, valid: Array | None) -> tuple[Array, Array]:
        """Ids and counts by repeating, for each stretch of one episode in one env, what it begins with."""
        n_steps = starts.shape[1]
        steps, envs = np.nonzero(starts.T)
        own = np.full(starts.shape, NO_TRAJECTORY, dtype=np.int64)
        own[envs, steps] = self._base + self._counter + np.arange(len(steps))
        own[:, 0] = np.where(starts[:, 0], own[:, 0], self._current)
        self._counter += len(steps)
        begins = starts.copy()
        begins[:, 0] = True
        places = np.flatnonzero(begins)
        lengths = np.diff(places, append=starts.size)
        ids = np.repeat(own.reshape(-1)[places], lengths).reshape(starts.shape)
        before = np.where(starts[:, 0], 0, self._length)
        offsets = np.where(places % n_steps == 0, before[places // n_steps], 0) - places
        counts = np.repeat(offsets, lengths).reshape(starts.shape) + np.arange(starts.size).reshape(starts.shape)
        self._current, self._length = ids[:, -1].copy(), counts[:, -1] + 1
        self._fresh = last[:, -1].copy()
        if valid is not None:
            self._fresh |= ~valid[:, -1]
            ids[~valid] = NO_TRAJECTORY
        return ids, counts
