"""What a worker collected in one go, and the batch that users see of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from swath.keys import FLAGS, MASK, NEXT, REWARD, STEP_COUNT, TIME, TRACKED_VERSION, TRAJ_IDS, VERSION, Key, under_next
from swath.rollout.buffer import Rows, TensorDictRows
from swath.rollout.spaces import Array


@dataclass(frozen=True)
class Layout:
    """Names and extras of a batch.

    Attributes:
        batch_shape: `*B`.
        observation: keys of the observation leaves.
        outputs: keys of the policy's outputs, action leaves first.
        track_ids: trajectory ids.
        track_version: the second pair of version entries.
        compact_obs: no observations under `"next"`.
        masked: whether to add the mask also where all rows are transitions.
        open: whether env and policy write whatever they like, also entries that are not delivered.
    """

    batch_shape: tuple[int, ...]
    observation: tuple[Key, ...]
    outputs: tuple[Key, ...]
    track_ids: bool = True
    track_version: bool = False
    compact_obs: bool = False
    masked: bool = False
    open: bool = False


@dataclass(slots=True)
class Fragment:
    """T steps of B envs under one policy version.

    Attributes:
        rows: the arrays `[B, T, …]`, or a TensorDict of them.
        ids: int64 `[B, T]` trajectory ids, -1 where a row is no transition.
        counts: int64 `[B, T]`: steps of the episode that came before the row; `None` where no batch shows them.
        version: the policy version that acted; int64 `[B]` where envs of several workers are joined.
        steps: how many of the T steps were made; `None` for all.
    """

    rows: Rows | TensorDictRows
    ids: Array
    counts: Array | None
    version: int | Array
    steps: int | None = None

    @property
    def frames(self) -> int:
        """How many rows are transitions."""
        return self.ids.size if self.rows.valid is None else int(self.rows.valid.sum())

    def to_tensordict(self, layout: Layout) -> Any:
        """The batch `[*B, T]`; it shares memory with the fragment, which is then the batch's."""
        rows, shape = self.rows, (*layout.batch_shape, self.ids.shape[1])
        labels = dict(self._labels(layout, shape))
        if isinstance(rows, TensorDictRows):
            return rows.batch(labels, compact=layout.compact_obs)
        leaves = [*zip((*layout.observation, *layout.outputs), (*rows.observation, *rows.outputs), strict=True)]
        if not layout.compact_obs:
            leaves += zip(map(under_next, layout.observation), rows.next_observation, strict=True)
        entries = {key: _tensor(leaf, *shape, *leaf.shape[2:]) for key, leaf in leaves}
        entries |= {key: _tensor(leaf, *shape, 1) for key, leaf in self._flags(rows)}
        return TensorDict(entries | labels, batch_size=shape, names=[*[None] * len(layout.batch_shape), TIME])

    def _labels(self, layout: Layout, shape: tuple[int, ...]) -> Iterator[tuple[Key, torch.Tensor]]:
        """What is known of each row beside its data, `[*B, T]`."""
        if layout.track_ids:
            yield TRAJ_IDS, _tensor(self.ids, *shape)
        if self.rows.valid is not None:
            yield MASK, _tensor(self.rows.valid, *shape)
        elif layout.masked:
            yield MASK, torch.ones(shape, dtype=torch.bool)
        version = torch.as_tensor(self.version).unsqueeze(-1).expand(self.ids.shape).reshape(shape)
        yield VERSION, version
        if layout.track_version:
            for key in (TRACKED_VERSION, (NEXT, TRACKED_VERSION)):
                yield key, version.clone(memory_format=torch.contiguous_format)

    def _flags(self, rows: Rows) -> Iterator[tuple[Key, Array]]:
        """Entries that have one number per row `[B, T]` and a last dimension of 1 in the batch."""
        yield (NEXT, REWARD), rows.reward
        for name, array in zip(FLAGS, (rows.last, rows.terminated, rows.truncated), strict=True):
            yield (NEXT, name), array
            yield name, np.zeros(array.shape, dtype=np.bool_)
        if self.counts is not None:
            yield STEP_COUNT, self.counts
            yield (NEXT, STEP_COUNT), self.counts + 1


def _tensor(array: Any, *shape: int) -> torch.Tensor:
    shaped = array.reshape(shape)  # as an array, if it is one: a tensor takes ten times as long
    return torch.from_numpy(shaped) if isinstance(shaped, np.ndarray) else shaped
