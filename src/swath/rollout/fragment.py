"""What a worker collected in one go, and the batch that users see of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from swath.keys import (
    DONE,
    MASK,
    NEXT,
    REWARD,
    STEP_COUNT,
    TERMINATED,
    TIME,
    TRACKED_VERSION,
    TRAJ_IDS,
    TRUNCATED,
    VERSION,
    Key,
    as_tuple,
    under_next,
)
from swath.rollout.buffer import Rows
from swath.rollout.spaces import Array


@dataclass(frozen=True)
class Layout:
    """Names and extras of a batch.

    Attributes:
        batch_shape: `*B`.
        observation: keys of the observation leaves.
        outputs: keys of the policy's outputs, action leaves first.
        step_count: whether to add `"step_count"`.
        track_ids: whether to add trajectory ids.
        track_version: whether to add the second pair of version entries.
        set_truncated: whether the last transition of each env is marked as truncated.
        compact: whether to leave observations out under `"next"`.
    """

    batch_shape: tuple[int, ...]
    observation: tuple[Key, ...]
    outputs: tuple[Key, ...]
    step_count: bool = False
    track_ids: bool = True
    track_version: bool = False
    compact: bool = False
    set_truncated: bool = False


@dataclass(slots=True)
class Fragment:
    """T steps of B envs under one policy version.

    Attributes:
        rows: the arrays `[B, T, …]`.
        ids: int64 `[B, T]` trajectory ids, -1 where a row is no transition.
        counts: int64 `[B, T]`: steps of the episode that came before the row.
        version: the policy version that acted.
        worker: which worker made it.
        life: in which of its lives.
    """

    rows: Rows
    ids: Array
    counts: Array
    version: int
    worker: int = 0
    life: int = 0

    @property
    def frames(self) -> int:
        """How many rows are transitions."""
        return self.rows.n_valid

    def to_tensordict(self, layout: Layout) -> TensorDict:
        """The batch `[*B, T]`; it shares memory with the fragment, which is then the batch's."""
        rows, n_steps = self.rows, self.rows.reward.shape[1]
        shape = (*layout.batch_shape, n_steps)
        entries: dict[str, Any] = {}

        def put(key: Key, array: Any, *trailing: int) -> None:
            _put(entries, key, _tensor(array, shape, trailing or array.shape[2:]))

        for key, array in zip(layout.observation, rows.observation, strict=True):
            put(key, array)
        for key, array in zip(layout.outputs, rows.outputs, strict=True):
            put(key, array)
        if not layout.compact:
            for key, array in zip(layout.observation, rows.next_observation, strict=True):
                put(under_next(key), array)
        put((NEXT, REWARD), rows.reward, 1)
        for name, array in ((TERMINATED, rows.terminated), (TRUNCATED, rows.truncated), (DONE, rows.last)):
            put((NEXT, name), array, 1)
            put(name, np.zeros_like(array), 1)
        if layout.step_count:
            put(STEP_COUNT, self.counts, 1)
            put((NEXT, STEP_COUNT), self.counts + 1, 1)
        if layout.track_ids:
            put(TRAJ_IDS, self.ids)
        if rows.valid is not None:
            put(MASK, rows.valid)
        for key in (VERSION, TRACKED_VERSION, (NEXT, TRACKED_VERSION)) if layout.track_version else (VERSION,):
            _put(entries, key, torch.full(shape, self.version, dtype=torch.int64))
        return _tensordict(entries, shape)


def _put(target: dict[str, Any], key: Key, value: Any) -> None:
    *parents, name = as_tuple(key)
    for parent in parents:
        target = target.setdefault(parent, {})
    target[name] = value


def _tensor(array: Any, shape: Sequence[int], rest: Sequence[int]) -> torch.Tensor:
    tensor: torch.Tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
    return tensor.reshape(*shape, *rest)


def _tensordict(entries: dict[str, Any], shape: tuple[int, ...]) -> TensorDict:
    source = {name: _tensordict(value, shape) if isinstance(value, dict) else value for name, value in entries.items()}
    names = [None] * (len(shape) - 1) + [TIME]
    return TensorDict(source, batch_size=shape, names=names)
