"""From fragments that lie elsewhere to a batch that the user owns: each number is copied once.

fragments, views into foreign memory ─▶ joined along envs ─▶ one batch [*B, T] or [W, *B, T]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict

from swath.collectors.fragments import head_of
from swath.collectors.messages import Description
from swath.errors import warn
from swath.group.group import Request
from swath.keys import TIME
from swath.rollout.buffer import Rows
from swath.rollout.fragment import Fragment, Layout

CPU = torch.device("cpu")


@dataclass
class Joiner:
    """Makes batches in memory of the user's own, where batches live.

    Attributes:
        described: what workers are like, by index; those that are added come later.
        storing: the device of batches by worker; `None` sets none. One that this process lacks is a `UserWarning`, and
            the CPU.
        dim: along which shares are concatenated; `None` stacks them.
        several: whether batches are made of what several workers made; where their devices differ, they are joined on
            the CPU.
        own: fragments are fresh arrays, not views; they become the batch's.
    """

    described: Mapping[int, Description]
    storing: Sequence[torch.device | None]
    dim: int | None = None
    several: bool = False
    own: bool = False

    def __post_init__(self) -> None:
        there = {device: _available(device) for device in dict.fromkeys(self.storing)}
        self.storing = [there[device] for device in self.storing]
        if self.several and len(set(self.storing)) > 1:
            self.storing = [CPU]

    def batch(self, shares: Sequence[Request], bodies: Sequence[Any]) -> Any:
        """One batch of the bodies of its shares: `[*B, T]` of one, `[W, *B, T]` or joined along a dimension of all."""
        if not self.several:
            return self.part(shares[0], bodies[0])
        if self.dim is not None:
            return torch.cat([self.part(share, body) for share, body in zip(shares, bodies, strict=True)], self.dim)
        return self._placed(_stacked(bodies, self.described[shares[0].worker].layout), 0)

    def part(self, share: Request, body: Any) -> Any:
        """The batch `[*B, T]` of one share; where they are joined in time without the steps that were not made."""
        if isinstance(body, Fragment):
            fragment, layout = body if self.own else joined([body]), self.described[share.worker].layout
            batch: Any = fragment.to_tensordict(layout)
        else:
            batch = body if self.own else body.clone()
        batch = self._placed(batch, share.worker)
        return batch[..., : head_of(share).steps] if self.dim == -1 else batch

    def _placed(self, batch: Any, worker: int) -> Any:
        """Where it lives; what workers made that were added, as of the first."""
        device = self.storing[worker if worker < len(self.storing) else 0]
        return batch if device is None else batch.to(device)


def _stacked(bodies: Sequence[Any], layout: Layout) -> Any:
    """The batch `[W, *B, T]` of one fragment per worker."""
    if all(isinstance(body, Fragment) for body in bodies):
        return joined(bodies).to_tensordict(replace(layout, batch_shape=(len(bodies), *layout.batch_shape)))
    batches = [body.to_tensordict(layout) if isinstance(body, Fragment) else body for body in bodies]
    together = LazyStackedTensorDict.maybe_dense_stack(batches, dim=0)
    if isinstance(together, LazyStackedTensorDict):
        together = LazyStackedTensorDict(*[batch.clone() for batch in batches], stack_dim=0)
    together.refine_names(..., TIME)
    return together


def joined(fragments: Sequence[Fragment]) -> Fragment:
    """One fragment `[ΣB, T]` in fresh arrays, the fragments' envs one after another."""
    first, rows = fragments[0], [fragment.rows for fragment in fragments]
    leaves: dict[str, Any] = {
        name: [_joined(column) for column in zip(*[getattr(one, name) for one in rows], strict=True)]
        for name in ("observation", "outputs", "next_observation")
    }
    flags = {name: _joined([getattr(one, name) for one in rows]) for name in ("reward", "terminated", "truncated")}
    valid, version = None, first.version
    if any([one.valid is not None for one in rows]):  # noqa: C419  faster than a generator
        valid = _joined([np.ones(one.reward.shape, np.bool_) if one.valid is None else one.valid for one in rows])
    if len({one.version for one in fragments}) > 1:
        version = np.concatenate([np.full(len(one.ids), one.version, dtype=np.int64) for one in fragments])
    ids = _joined([one.ids for one in fragments])
    counts = None if first.counts is None else _joined([one.counts for one in fragments])
    return Fragment(Rows(**leaves, **flags, valid=valid), ids, counts, version)


def _joined(arrays: Sequence[Any]) -> Any:
    return torch.cat(list(arrays)) if isinstance(arrays[0], torch.Tensor) else np.concatenate(arrays)


def _available(device: torch.device | None) -> torch.device | None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # what torch raises if it does not have it, or was not built for it
        warn(f"storing_device={str(device)!r} is not there in this process: batches stay on the CPU")
        return CPU
    return device
