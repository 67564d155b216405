"""Where the steps of a fragment are written, and the arrays `[B, T, …]` that are handed out.

    Step t ──▶ room[t]        observations, policy outputs, next observations, rewards: memory `[T, B, …]`, used again
           ──▶ sparse marks   ends, rows that are no transition, cuts
    seal   ──▶ fresh arrays   `[B, T, …]`, copied in one go; few or large rows are written there at once

To write the rows of many envs side by side touches a tenth of the memory lines that rows `[:, t]` do, and leaves the
caches to the policy and the envs. What is handed out is its receiver's; the next fragment gets new arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves

LARGE_ROW = 256
"""From this many bytes on, one env's row fills memory lines of its own: it is written where it stays."""
MANY_ENVS = 128
"""From so many on, a step's rows are written side by side first; with fewer that is no quicker."""


@dataclass(frozen=True)
class Column:
    """Shape and dtype of one entry's row `[B, …]`; of a tensor where numpy lacks the dtype.

    Attributes:
        shape: of a whole row, B included.
        dtype: numpy dtype, or torch dtype.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | torch.dtype

    @property
    def is_large(self) -> bool:
        """Whether one env's row is."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize >= LARGE_ROW

    @property
    def in_place(self) -> bool:
        """Whether rows are written where they stay."""
        return self.is_large or self.shape[0] < MANY_ENVS

    def allocate(self, n_steps: int) -> Any:
        """Room `[B, T, …]` for T rows, not initialised; in memory it is `[T, B, …]`, unless they stay there."""
        shape = (self.shape[0], n_steps) if self.in_place else (n_steps, self.shape[0])
        empty: Any = torch.empty if isinstance(self.dtype, torch.dtype) else np.empty
        room = empty((*shape, *self.shape[1:]), dtype=self.dtype)
        return room if self.in_place else room.swapaxes(0, 1)


def column_of(leaf: Any) -> Column:
    """The column that holds rows like this one."""
    return Column(tuple(leaf.shape), leaf.dtype)


@dataclass(slots=True, kw_only=True)
class Flags:
    """Rewards and ends of T steps of B envs, arrays `[B, T]`.

    Attributes:
        reward: float32.
        terminated: bool.
        truncated: bool.
        valid: bool: the row is a transition; `None` if all are.
        restarted: envs that failed before the first row, so that an episode of the fragment before was given up.
    """

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array | None = None
    restarted: Sequence[int] = ()

    @property
    def last(self) -> Array:
        """Rows that end their episode."""
        return np.logical_or(self.terminated, self.truncated)

    @property
    def n_valid(self) -> int:
        """How many rows are transitions."""
        return self.reward.size if self.valid is None else int(self.valid.sum())

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        n_envs, n_steps = self.terminated.shape
        return n_envs, n_steps

    def void(self, envs: Sequence[int] | slice, steps: int | slice) -> None:
        """These rows are no transitions."""
        if self.valid is None:
            self.valid = np.ones(self.shape, dtype=np.bool_)
        self.valid[envs, steps] = False


@dataclass(slots=True, kw_only=True)
class Rows(Flags):
    """T steps of B envs, all arrays `[B, T, …]`.

    Attributes:
        observation: one array per observation leaf.
        outputs: one array per policy output, action leaves first.
        next_observation: as `observation`, what the steps led to.
    """

    observation: Leaves
    outputs: Leaves
    next_observation: Leaves

    def cut_last(self) -> None:
        """The last transition of each env is marked as truncated, unless it terminated; its episode goes on."""
        n_envs, n_steps = self.shape
        final = np.full(n_envs, n_steps - 1)
        if self.valid is not None:
            final -= np.argmax(self.valid[:, ::-1], axis=1)
        envs = np.arange(n_envs) if self.valid is None else np.flatnonzero(self.valid.any(axis=1))
        self.truncated[envs, final[envs]] |= ~self.terminated[envs, final[envs]]

    def blank_from(self, n_steps: int) -> None:
        """Rows from step `n_steps` on were never made: zero, and no transitions."""
        for array in (*self.observation, *self.outputs, *self.next_observation, self.reward):
            array[:, n_steps:] = 0
        self.void(slice(None), slice(n_steps, None))


class Buffer:
    """Room for fragments of T steps, one after another.

    Args:
        observation: columns of the observation leaves.
        outputs: columns of the policy's outputs.
        n_steps: T.
    """

    def __init__(self, observation: Sequence[Column], outputs: Sequence[Column], n_steps: int) -> None:
        self._n_envs, self.n_steps = observation[0].shape[0], n_steps
        reward = Column((self._n_envs,), np.dtype(np.float32))
        self._columns = (*observation, *outputs, reward, *observation)
        self._n_observed = len(observation)
        self._rooms = [column.allocate(n_steps) for column in self._columns]
        self._at_once = any(column.is_large for column in observation)
        self._led_to: tuple[int, Leaves] = (-1, [])
        """The last step that was written, and what it led to."""
        self._stray: list[tuple[int, Leaves]] = []
        """Steps that led to something else than what the next one began with, and to what."""

    def open(self) -> Rows:
        """Room for one fragment; `seal` gives it arrays of its own, and the next one may be opened."""
        shape = (self._n_envs, self.n_steps)
        self._led_to, self._stray = (-1, []), []
        for place, column in enumerate(self._columns):
            if column.in_place:
                self._rooms[place] = column.allocate(self.n_steps)
        terminated, truncated = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
        return Rows(**self._parts(self._rooms), terminated=terminated, truncated=truncated)

    def write(self, rows: Rows, t: int, step: Step) -> None:
        """Write step `t`."""
        leaves = (*step.observation, *step.outputs, step.reward)
        for room, leaf in zip(self._rooms, leaves, strict=False):  # rooms for what it led to come last
            room[:, t] = leaf
        if self._at_once:
            self._write_next(t, step.next_observation)
        else:
            if step.observation is not self._led_to[1] and t:
                self._stray.append(self._led_to)
            self._led_to = t, step.next_observation
        if step.ended.envs.size:
            rows.terminated[step.ended.envs, t] = step.ended.terminated
            rows.truncated[step.ended.envs, t] = step.ended.truncated
        if step.void:
            rows.void(step.void, t)
        if step.cut:
            _cut(rows, t, step.cut)

    def seal(self, rows: Rows) -> None:
        """All steps are written: arrays in the order of the batch are made of what is in another.

        What a step led to mostly is what the next one began with, and is filled in here, unless rows are large.
        """
        last, _ = self._led_to
        if last >= 0:
            n = self._n_observed
            for room, began in zip(self._rooms[-n:], self._rooms[:n], strict=True):
                room[:, :last] = began[:, 1 : last + 1]
            for t, leaves in [*self._stray, self._led_to]:
                self._write_next(t, leaves)
        arrays = [
            room if column.in_place else _in_order(room)
            for column, room in zip(self._columns, self._rooms, strict=True)
        ]
        for name, part in self._parts(arrays).items():
            setattr(rows, name, part)

    def _parts(self, arrays: Leaves) -> dict[str, Any]:
        """What the arrays are, by the names in `Rows`."""
        n = self._n_observed
        parts = arrays[:n], arrays[n : -n - 1], arrays[-n - 1], arrays[-n:]
        return dict(zip(("observation", "outputs", "reward", "next_observation"), parts, strict=True))

    def _write_next(self, t: int, leaves: Leaves) -> None:
        for room, leaf in zip(self._rooms[-self._n_observed :], leaves, strict=True):
            room[:, t] = leaf


def _cut(rows: Rows, t: int, envs: Sequence[int]) -> None:
    """The row before step `t` is the last good one of an env that failed, unless its episode had ended there."""
    if t == 0:
        rows.restarted = envs
        return
    for env in envs:
        was_transition = rows.valid is None or rows.valid[env, t - 1]
        if was_transition and not rows.terminated[env, t - 1]:
            rows.truncated[env, t - 1] = True


def _in_order(room: Any) -> Any:
    """A copy `[B, T, …]`, its memory in that order; torch's transposition is up to twice as quick as numpy's."""
    copy = torch.as_tensor(room).clone(memory_format=torch.contiguous_format)
    return copy if isinstance(room, torch.Tensor) else copy.numpy()
