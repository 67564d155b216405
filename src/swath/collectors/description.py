"""What a worker elsewhere is like, as its collection must know it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from swath.keys import as_key
from swath.rollout.fragment import Layout
from swath.weights.manifest import Manifest

Signature = Mapping[Any, tuple[tuple[int, ...], torch.dtype]]
"""Shape behind `[*B, T]` and dtype of each entry of a batch, as far as they are fixed."""


@dataclass(frozen=True)
class Description:
    """What a worker is like, as its collection must know it.

    Attributes:
        num_envs: B.
        n_steps: T.
        layout: names and extras of its fragments.
        manifest: of the policy's weights.
        signature: of its fragments.
        env_device: where its envs run.
        policy_device: where its policy runs; `None` if nobody said.
        envs: how many it has in all, if more than one fragment is made of.
    """

    num_envs: int
    n_steps: int
    layout: Layout
    manifest: Manifest
    signature: Signature
    env_device: torch.device | None = None
    policy_device: torch.device | None = None
    envs: int | None = None

    @property
    def all_envs(self) -> int:
        """How many envs have seeds of their own."""
        return self.num_envs if self.envs is None else self.envs

    @property
    def frames(self) -> int:
        """Frames of a fragment."""
        return self.num_envs * self.n_steps

    def rounded(self, frames: int) -> int:
        """Frames of a fragment if so many are asked for: whole steps."""
        return -(-frames // self.num_envs) * self.num_envs

    def difference(self, other: Description) -> str:
        """What the other has in another way, in words; empty if its fragments can take the place of these."""
        shapes = self.layout.batch_shape, other.layout.batch_shape
        if shapes[0] != shapes[1]:
            return f"envs of batch shape {list(shapes[1])}, not {list(shapes[0])}"
        for key in [*self.signature, *other.signature]:
            mine, theirs = self.signature.get(key), other.signature.get(key)
            if mine != theirs:
                return f"entry {key!r} is {_said(theirs)}, not {_said(mine)}"
        return ""


def _said(entry: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "missing" if entry is None else f"{list(entry[0])} of {entry[1]}"


def signature_of(batch: Any, n_dims: int) -> Signature:
    """That of a batch with so many leading dimensions."""
    return dict(_entries(batch, (), n_dims))


def _entries(
    batch: Any, path: tuple[Any, ...], n_dims: int
) -> Iterator[tuple[Any, tuple[tuple[int, ...], torch.dtype]]]:
    """Those below a path; where members of a group have entries of their own, by member."""
    if isinstance(batch, LazyStackedTensorDict) and batch.stack_dim >= n_dims:
        for member, one in enumerate(batch.tensordicts):
            yield from _entries(one, (*path, member), n_dims)
        return
    for key, value in batch.items():
        if isinstance(value, TensorDictBase):
            yield from _entries(value, (*path, key), n_dims)
        elif isinstance(value, torch.Tensor):
            yield as_key((*path, key)), (tuple(value.shape[n_dims:]), value.dtype)
