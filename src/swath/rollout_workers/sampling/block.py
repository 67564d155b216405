"""T steps of B envs under one version of the policy: rows, what they are called, and which of them count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swath.rollout.buffer import Buffer, Rows
from swath.rollout.episodes.ids import TrajectoryIds
from swath.rollout.hosts.base import Infos
from swath.rollout.loop import Step
from swath.rollout.spaces import Array
from swath.rollout_workers.sampling.outputs import Layout

Stretch = tuple[int, int, int]
"""Rows of one env of a block: env, start, stop."""


@dataclass
class Block:
    """Steps that were made, in arrays `[B, T, …]`.

    Attributes:
        rows: as they were written.
        reward: after clipping, float32 `[B, T]`; `rows.reward` is what the envs gave.
        ids: trajectory ids, int64 `[B, T]`.
        counts: steps of the episode before this one, int64 `[B, T]`.
        version: of the policy that acted.
        infos: what the envs said beside, per step.
        layout: which columns the outputs are.
        failed: where envs raised: env, step.
    """

    rows: Rows
    reward: Array
    ids: Array
    counts: Array
    version: int
    infos: list[Infos]
    layout: Layout
    failed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        """B, T."""
        n_envs, n_steps = self.reward.shape
        return n_envs, n_steps

    def ends(self) -> Array:
        """Rows that end their episode by themselves or where it was cut, bool `[B, T]`."""
        last = self.rows.last
        return last if self.rows.valid is None else last & self.rows.valid

    def stretches(self) -> Iterator[Stretch]:
        """The rows that are transitions, in runs, by env."""
        n_envs, n_steps = self.shape
        if self.rows.valid is None:
            yield from ((env, 0, n_steps) for env in range(n_envs))
            return
        for env, valid in enumerate(self.rows.valid):
            edges = np.flatnonzero(np.diff(valid.astype(np.int8), prepend=0, append=0))
            yield from ((env, int(start), int(stop)) for start, stop in edges.reshape(-1, 2))

    def cut(self, env: int, t: int) -> None:
        """The episode that this row belongs to ended with it, truncated, unless it had ended already."""
        if not (self.rows.terminated[env, t] or self.rows.truncated[env, t]):
            self.rows.truncated[env, t] = True

    def discard(self, env: int, trajectory: int) -> int:
        """The rows of this episode are not to be handed out; how many they are."""
        rows = self.rows
        if rows.valid is None:
            rows.valid = np.ones(self.reward.shape, dtype=np.bool_)
        gone = (self.ids[env] == trajectory) & rows.valid[env]
        rows.valid[env] &= ~gone
        return int(gone.sum())


class Writer:
    """Writes the steps of one block.

    Args:
        first: its first step, of which arrays get their shapes.
        n_steps: T, how many there may be.
    """

    def __init__(self, first: Step, n_steps: int) -> None:
        self._buffer = Buffer(first.observation, first.outputs, n_steps)
        self._rows = self._buffer.open()
        self._infos: list[Infos] = []
        self._failed: list[tuple[int, int]] = []
        self.made = 0

    def write(self, step: Step) -> None:
        """Write the next step."""
        self._buffer.write(self._rows, self.made, step)
        self._infos.append(step.info)
        if step.void:
            over = {env for env, _, _ in step.ended}
            self._failed += [(env, self.made) for env in step.void if env in over]
        self.made += 1

    def seal(self, label: Label) -> Block:
        """What was written, as a block."""
        self._buffer.seal(self._rows)
        rows = self._rows if self.made == self._buffer.n_steps else _first(self._rows, self.made)
        valid = rows.valid
        if self._failed and valid is not None:  # an episode whose first step raised has used its id up, too
            valid = valid.copy()
            valid[tuple(zip(*self._failed, strict=True))] = True
        ids, counts = label.ids.label(rows.last, valid)
        reward = rows.reward if label.clip is None else label.clip(rows.reward)
        return Block(rows, reward, ids, counts, label.version, self._infos, label.layout, self._failed)


@dataclass(frozen=True)
class Label:
    """What is said about a block.

    Attributes:
        ids: gives trajectory ids.
        clip: what becomes of rewards; None: nothing.
        version: of the policy.
        layout: which columns its outputs are.
    """

    ids: TrajectoryIds
    clip: Callable[[Array], Array] | None
    version: int
    layout: Layout


def _first(rows: Rows, n_steps: int) -> Rows:
    """The first steps of rows of which the others were never made."""

    def cut(arrays: Sequence[Any]) -> list[Any]:
        return [array[:, :n_steps] for array in arrays]

    reward, terminated, truncated = cut([rows.reward, rows.terminated, rows.truncated])
    return Rows(
        observation=cut(rows.observation),
        outputs=cut(rows.outputs),
        next_observation=cut(rows.next_observation),
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        valid=None if rows.valid is None else rows.valid[:, :n_steps],
    )
