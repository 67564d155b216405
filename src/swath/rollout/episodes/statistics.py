"""Episodes: their ids, returns and lengths of running ones, records of ended ones, means over the last hundred.

fragment by fragment   TrajectoryIds.label(reward, ends)   ──▶ ids of rows, the episodes that end
step by step           EpisodeSums.count_step(reward)      ──▶ returns, lengths of the running episodes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from swath.rollout.memory import as_array, convert
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
        self._current: Any
        self._length: Any
        self._current, self._length = np.zeros((2, num_envs), dtype=np.int64)
        self._total: Any = np.zeros(num_envs)
        self._fresh: Any = np.ones(num_envs, dtype=np.bool_)
        self.ended_episodes = NO_EPISODES

    @property
    def next_id(self) -> int:
        """Return the next id, which is above all assigned ones."""
        return self._base + self.n_ids

    def begin(self, envs: Sequence[int] | None = None) -> None:
        """Begin new episodes with the next rows of the envs, by default of all."""
        self._fresh[slice(None) if envs is None else list(envs)] = True

    def label(self, reward: Any, last: Any, valid: Any = None) -> tuple[Any, Any]:
        """Return ids and step counts of the next T rows, in the memory of the rewards: arrays, or tensors on the CPU.

        Args:
            reward: `[B, T]`.
            last: bool `[B, T]`: the row ends its episode.
            valid: bool `[B, T]`: the row is a transition; `None` if all are. An episode begins after a row that is not.

        Returns:
            int64 `[B, T]` ids (-1 where not valid), and int64 `[B, T]`: number of earlier steps of the episode, or
            `None` unless `counts_steps`.
        """
        ids, counts = self._label(as_array(reward), as_array(last), None if valid is None else as_array(valid))
        return convert(ids, reward), None if counts is None else convert(counts, reward)

    def _label(self, reward: Array, last: Array, valid: Array | None) -> tuple[Array, Array | None]:
        n_envs, n_steps = last.shape
        heads = np.ones(last.shape, dtype=np.bool_)
        heads[:, 1:] = last[:, :-1]
        fresh = self._fresh
        if valid is not None:
            heads[:, 1:] |= ~valid[:, :-1]
            heads[:, 1:] &= valid[:, 1:]
            fresh, reward = fresh & valid[:, 0], np.where(valid, reward, 0)
        firsts = np.flatnonzero(heads)  # first rows of the stretches of one episode in one env
        (envs, steps), lengths = np.divmod(firsts, n_steps), np.diff(firsts, append=last.size)
        n_valid = lengths if valid is None else np.add.reduceat(valid.reshape(-1), firsts, dtype=np.int64)
        begin = np.flatnonzero((steps > 0) | fresh[envs])
        begin = begin[np.argsort(steps[begin] * n_envs + envs[begin])]
        trajectory, length_before, total = self._current[envs], self._length[envs], self._total[envs]
        trajectory[begin], length_before[begin], total[begin] = self.next_id + np.arange(len(begin)), 0, 0
        self.n_ids += len(begin)
        total += np.add.reduceat(reward.reshape(-1).astype(np.float64), firsts)
        ids, counts = np.repeat(trajectory, lengths).reshape(last.shape), None
        if self._counts_steps:
            counts = (np.repeat(length_before - firsts, lengths) + np.arange(last.size)).reshape(last.shape)
        complete = np.flatnonzero(last.reshape(-1)[firsts + n_valid - 1] & (n_valid > 0))
        complete = complete[np.argsort((steps + n_valid)[complete] * n_envs + envs[complete])]
        self.ended_episodes = np.empty(len(complete), EPISODE_DTYPE)
        for name, values in (("trajectory", trajectory), ("total", total), ("length", length_before + n_valid)):
            self.ended_episodes[name] = values[complete]
        latest = np.append(np.flatnonzero(steps == 0)[1:], len(firsts)) - 1
        self._current, self._length, self._total = trajectory[latest], (length_before + n_valid)[latest], total[latest]
        self._fresh = last[:, -1].copy()
        if valid is not None:
            self._fresh |= ~valid[:, -1]
            ids[~valid] = NO_TRAJECTORY
        return ids, counts


class DeviceTrajectoryIds(TrajectoryIds):
    """`TrajectoryIds` of rewards and flags that are tensors; `label` waits for their device once.

    Args:
        num_envs: B.
        worker: index of the worker.
        life: life number of the worker.
        counts_steps: whether to return step counts.
        device: where the tensors are.
    """

    def __init__(
        self, num_envs: int, *, worker: int = 0, life: int = 0, counts_steps: bool = False, device: torch.device
    ) -> None:
        super().__init__(num_envs, worker=worker, life=life, counts_steps=counts_steps)
        state = (self._current, self._length, self._total, self._fresh)
        self._current, self._length, self._total, self._fresh = (torch.from_numpy(part).to(device) for part in state)

    def label(self, reward: Any, last: Any, valid: Any = None) -> tuple[Any, Any]:
        """Return ids and step counts of the next T rows, as tensors; see `TrajectoryIds.label`."""
        valid = torch.ones_like(last) if valid is None else valid
        last, (n_envs, n_steps) = last & valid, last.shape
        steps = torch.arange(n_steps, device=last.device)
        # The first rows of stretches of one episode in one env, and those among them that begin an episode.
        heads = torch.ones_like(last)
        heads[:, 1:] = (last | ~valid)[:, :-1] & valid[:, 1:]
        begins = heads.clone()
        begins[:, 0] = self._fresh & valid[:, 0]
        numbers = begins.T.reshape(-1).cumsum(0)
        ids = torch.where(begins, self.next_id - 1 + numbers.view(n_steps, n_envs).T, NO_TRAJECTORY)
        ids[:, 0] = torch.where(begins[:, 0], ids[:, 0], self._current)
        ids = ids.cummax(1).values
        stretch = heads.reshape(-1).cumsum(0).view(n_envs, n_steps) - 1
        first, size = stretch[:, 0], n_envs * n_steps
        continues = ~begins[:, 0]
        lengths, totals = torch.zeros(size, dtype=torch.int64, device=last.device), reward.new_zeros(size).double()
        lengths[first], totals[first] = self._length * continues, torch.where(continues, self._total, 0.0)
        before, counts = lengths[stretch], None
        lengths.index_add_(0, stretch.reshape(-1), valid.reshape(-1).long())
        totals.index_add_(0, stretch.reshape(-1), torch.where(valid, reward, 0).double().reshape(-1))
        if self._counts_steps:
            counts = before + steps - torch.where(heads, steps, 0).cummax(1).values
        self._current, self._length, self._total = ids[:, -1], lengths[stretch[:, -1]], totals[stretch[:, -1]]
        self._fresh = (last | ~valid)[:, -1]
        ends, envs = last.T.nonzero(as_tuple=True)
        done = stretch[envs, ends]
        self.ended_episodes = np.empty(len(ends), EPISODE_DTYPE)
        for name, values in (("trajectory", ids[envs, ends]), ("total", totals[done]), ("length", lengths[done])):
            self.ended_episodes[name] = values.numpy(force=True)
        self.n_ids += int(numbers[-1])
        return torch.where(valid, ids, NO_TRAJECTORY), counts


def trajectory_ids(
    num_envs: int, worker: int, life: int, counts_steps: bool, device: torch.device | None
) -> TrajectoryIds:
    """Return an object that assigns ids to rows of arrays or, with a device, of tensors."""
    if device is None or device.type == "cpu":  # numpy is quicker there
        return TrajectoryIds(num_envs, worker=worker, life=life, counts_steps=counts_steps)
    return DeviceTrajectoryIds(num_envs, worker=worker, life=life, counts_steps=counts_steps, device=device)


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

    def count_step(self, reward: Any, void: Sequence[int] = ()) -> None:
        """Count a step of every env, with rewards `[B]`, except envs whose row is void; waits for a device."""
        valid: Array | bool = True
        if len(void):
            valid = np.ones(len(self.lengths), dtype=np.bool_)
            valid[list(void)] = False
        self.lengths += valid
        np.add(self.returns, as_array(reward), out=self.returns, where=valid)


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
