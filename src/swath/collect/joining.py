"""From fragments that lie elsewhere to a batch that the user owns: each number is copied once.

fragments, views into foreign memory ─▶ joined along envs ─▶ one batch [*B, T] or [W, *B, T]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict

from swath.errors import warn
from swath.keys import TIME
from swath.rollout.buffer import Rows
from swath.rollout.fragment import Fragment, Layout
from swath.rollout.spaces import Array


def batch_of(body: Any, layout: Layout) -> Any:
    """The batch `[*B, T]` of one fragment, in memory of its own."""
    if isinstance(body, Fragment):
        return joined([body]).to_tensordict(layout)
    return body.clone()


def stacked(bodies: Sequence[Any], layout: Layout) -> Any:
    """The batch `[W, *B, T]` of one fragment per worker, in memory of its own."""
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
    rows: list[Any] = [fragment.rows for fragment in fragments]
    together = Rows(
        observation=_columns([one.observation for one in rows]),
        outputs=_columns([one.outputs for one in rows]),
        next_observation=_columns([one.next_observation for one in rows]),
        reward=_joined([one.reward for one in rows]),
        terminated=_joined([one.terminated for one in rows]),
        truncated=_joined([one.truncated for one in rows]),
        valid=_valid(rows),
    )
    first = fragments[0]
    versions = {fragment.version for fragment in fragments}
    version = first.version if len(versions) == 1 else _versions(fragments)
    ids, counts = (_joined([getattr(one, name) for one in fragments]) for name in ("ids", "counts"))
    return Fragment(together, ids, counts, version, first.worker, first.life)


def _columns(leaves: Sequence[Sequence[Any]]) -> list[Any]:
    return [_joined(column) for column in zip(*leaves, strict=True)]


def _joined(arrays: Sequence[Any]) -> Any:
    if isinstance(arrays[0], torch.Tensor):
        return torch.cat(list(arrays))
    return np.concatenate(arrays)


def _valid(rows: Sequence[Rows]) -> Array | None:
    if all(one.valid is None for one in rows):
        return None
    valid: Array = _joined(
        [np.ones(one.reward.shape, dtype=np.bool_) if one.valid is None else one.valid for one in rows]
    )
    return valid


def _versions(fragments: Sequence[Fragment]) -> Array:
    """Int64 `[ΣB]`."""
    return np.concatenate([np.full(len(fragment.ids), fragment.version, dtype=np.int64) for fragment in fragments])


CPU = torch.device("cpu")


class Homes:
    """Moves batches to where they live.

    Args:
        storing: the device by worker; `None` sets none. One that this process lacks is a `UserWarning`, and the CPU.
        joined: whether batches are made of what several workers made; where their devices differ, they are joined on
            the CPU.
    """

    def __init__(self, storing: Sequence[torch.device | None], *, joined: bool) -> None:
        there = {device: _available(device) for device in dict.fromkeys(storing)}
        self._devices = [there[device] for device in storing]
        if joined and len(set(self._devices)) > 1:
            self._devices = [CPU]

    def place(self, batch: Any, worker: int) -> Any:
        """What a worker made, or what it is a part of; those that were added are as the first."""
        device = self._devices[worker if worker < len(self._devices) else 0]
        return batch if device is None else batch.to(device)


def _available(device: torch.device | None) -> torch.device | None:
    if device is None or device == CPU or _exists(device):
        return device
    warn(f"storing_device={str(device)!r} is not there in this process: batches stay on the CPU")
    return CPU


def _exists(device: torch.device) -> bool:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # what torch raises if it does not have it, or was not built for it
        return False
    return True
