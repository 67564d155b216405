"""Where the steps of a fragment are written: arrays `[B, T, …]`, made once per fragment and handed out with it.

    Step t ──▶ column[:, t]  for observations, policy outputs, rewards
           ──▶ sparse marks  for ends, rows that are no transition, cuts
    seal   ──▶ next observations, unless they are large: those of the next step, but where an episode ended

Time is the second dimension, as in the batch the user gets: rows are written to where they stay, and nothing is
transposed or copied at the hand-out. What a buffer has opened is its receiver's; the next fragment gets new arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves

LARGE_ROW = 4096
"""From this many bytes on, copying a row twice while it is at hand is quicker than fetching all rows again later."""


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
    def row_bytes(self) -> int:
        """Size of one env's row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def allocate(self, n_steps: int) -> Any:
        """Room `[B, T, …]` for T rows, not initialised."""
        shape = (self.shape[0], n_steps, *self.shape[1:])
        if isinstance(self.dtype, torch.dtype):
            return torch.empty(shape, dtype=self.dtype)
        return np.empty(shape, dtype=self.dtype)


def column_of(leaf: Any) -> Column:
    """The column that holds rows like this one."""
    return Column(tuple(leaf.shape), leaf.dtype)


@dataclass(slots=True)
class Rows:
    """T steps of B envs, all arrays `[B, T, …]`.

    Attributes:
        observation: one array per observation leaf.
        outputs: one array per policy output, action leaves first.
        next_observation: as `observation`, what the steps led to.
        reward: float32.
        terminated: bool.
        truncated: bool.
        valid: bool: the row is a transition; `None` if all are.
        restarted: envs that failed before the first row, so that an episode of the fragment before was given up.
        led_to: what the last step that was written led to.
        stray: steps that led to other observations than those the next step began with, and to which.
    """

    observation: Leaves
    outputs: Leaves
    next_observation: Leaves
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array | None
    restarted: Sequence[int] = ()
    led_to: Leaves = field(default_factory=list)
    stray: list[tuple[int, Leaves]] = field(default_factory=list)

    @property
    def last(self) -> Array:
        """Rows that end their episode."""
        return np.logical_or(self.terminated, self.truncated)

    @property
    def n_valid(self) -> int:
        """How many rows are transitions."""
        return self.reward.size if self.valid is None else int(self.valid.sum())

    def cut_last(self) -> None:
        """The last transition of each env is marked as truncated, unless it terminated; its episode goes on."""
        n_envs, n_steps = self.reward.shape
        final = np.full(n_envs, n_steps - 1)
        if self.valid is not None:
            final -= np.argmax(self.valid[:, ::-1], axis=1)
        envs = np.arange(n_envs) if self.valid is None else np.flatnonzero(self.valid.any(axis=1))
        self.truncated[envs, final[envs]] |= ~self.terminated[envs, final[envs]]

    def blank_from(self, n_steps: int) -> None:
        """Rows from step `n_steps` on were never made: zero, and no transitions."""
        for array in (*self.observation, *self.outputs, *self.next_observation, self.reward):
            array[:, n_steps:] = 0
        if self.valid is None:
            self.valid = np.ones(self.reward.shape, dtype=np.bool_)
        self.valid[:, n_steps:] = False


class Buffer:
    """Room for fragments of T steps.

    Args:
        observation: columns of the observation leaves.
        outputs: columns of the policy's outputs.
        n_steps: T.
    """

    def __init__(self, observation: Sequence[Column], outputs: Sequence[Column], n_steps: int) -> None:
        self._observation = tuple(observation)
        self._outputs = tuple(outputs)
        self._n_envs = self._observation[0].shape[0]
        self.n_steps = n_steps
        large = any(column.row_bytes > LARGE_ROW for column in self._observation)
        self._write_next = _write_now if large else _write_at_the_end

    def open(self) -> Rows:
        """Fresh arrays for one fragment."""
        shape, n_steps = (self._n_envs, self.n_steps), self.n_steps
        return Rows(
            observation=[column.allocate(n_steps) for column in self._observation],
            outputs=[column.allocate(n_steps) for column in self._outputs],
            next_observation=[column.allocate(n_steps) for column in self._observation],
            reward=np.empty(shape, dtype=np.float32),
            terminated=np.zeros(shape, dtype=np.bool_),
            truncated=np.zeros(shape, dtype=np.bool_),
            valid=None,
        )

    def write(self, rows: Rows, t: int, step: Step) -> None:
        """Write step `t`."""
        for array, leaf in zip(rows.observation, step.observation, strict=True):
            array[:, t] = leaf
        self._write_next(rows, t, step)
        for array, leaf in zip(rows.outputs, step.outputs, strict=True):
            array[:, t] = leaf
        rows.reward[:, t] = step.reward
        if step.ended.envs.size:
            rows.terminated[:, t][step.ended.envs] = step.ended.terminated
            rows.truncated[:, t][step.ended.envs] = step.ended.truncated
        if step.void:
            self._void(rows, t, step.void)
        if step.cut:
            _cut(rows, t, step.cut)

    def seal(self, rows: Rows, n_steps: int) -> None:
        """All `n_steps` steps are written: fill in what they led to, which mostly is what the next step began with."""
        if not rows.led_to:
            return
        for array, began in zip(rows.next_observation, rows.observation, strict=True):
            array[:, : n_steps - 1] = began[:, 1:n_steps]
        for t, leaves in [*rows.stray, (n_steps - 1, rows.led_to)]:
            for array, leaf in zip(rows.next_observation, leaves, strict=True):
                array[:, t] = leaf
        rows.stray, rows.led_to = [], []

    def _void(self, rows: Rows, t: int, envs: Sequence[int]) -> None:
        if rows.valid is None:
            rows.valid = np.ones((self._n_envs, self.n_steps), dtype=np.bool_)
        rows.valid[:, t][list(envs)] = False


def _write_now(rows: Rows, t: int, step: Step) -> None:
    for array, leaf in zip(rows.next_observation, step.next_observation, strict=True):
        array[:, t] = leaf


def _write_at_the_end(rows: Rows, t: int, step: Step) -> None:
    if t and step.observation is not rows.led_to:
        rows.stray.append((t - 1, rows.led_to))
    rows.led_to = step.next_observation


def _cut(rows: Rows, t: int, envs: Sequence[int]) -> None:
    """The row before step `t` is the last good one of an env that failed, unless its episode had ended there."""
    if t == 0:
        rows.restarted = envs
        return
    for env in envs:
        was_transition = rows.valid is None or rows.valid[env, t - 1]
        if was_transition and not rows.terminated[env, t - 1]:
            rows.truncated[env, t - 1] = True
