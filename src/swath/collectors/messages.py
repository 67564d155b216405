"""What crosses between a collection and its workers, and what it must know of them.

FragmentRequest ──▶ worker: one fragment ──▶ Head (small) + body (arrays), or Broken
                                         └─▶ Head alone, where the worker writes to a replay buffer itself
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from swath.keys import as_key
from swath.rollout.episodes.statistics import EpisodeArray, unpacked
from swath.rollout.fragment import Layout
from swath.weights.manifest import Manifest
from swath.workers.outcome import frozen, thawed


@dataclass(frozen=True)
class Description:
    """What a worker is like, as its collection must know it.

    Attributes:
        num_envs: B.
        n_steps: T.
        layout: names and extras of its fragments.
        manifest: of the policy's weights.
        signature: shape behind `[*B, T]` and dtype of each entry of its fragments, in words, as far as they are fixed.
        env_device: where its envs run.
        policy_device: where its policy runs; `None` if nobody said.
    """

    num_envs: int
    n_steps: int
    layout: Layout
    manifest: Manifest
    signature: Mapping[Any, str]
    env_device: torch.device | None = None
    policy_device: torch.device | None = None

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
        for key in {**self.signature, **other.signature}:
            mine, theirs = (one.signature.get(key, "missing") for one in (self, other))
            if mine != theirs:
                return f"entry {key!r} is {theirs}, not {mine}"
        return ""


def signature_of(batch: Any, n_dims: int, path: tuple[Any, ...] = ()) -> dict[Any, str]:
    """Shape and dtype of each entry of a batch with so many leading dimensions, below a path.

    Where members of a group have entries of their own, by member.
    """
    signature, entries = dict[Any, str](), batch.items()
    if isinstance(batch, LazyStackedTensorDict) and batch.stack_dim >= n_dims:
        entries = enumerate(batch.tensordicts)
    for key, value in entries:
        if isinstance(value, TensorDictBase):
            signature |= signature_of(value, n_dims, (*path, key))
        elif isinstance(value, torch.Tensor):
            signature[as_key((*path, key))] = f"{list(value.shape[n_dims:])} of {value.dtype}"
    return signature


@dataclass
class Tally:
    """Counts of one life of a worker; they only grow.

    Attributes:
        env_errors: exceptions of envs.
        restarts: how often the env source was built anew.
        fragments_lost: fragments broken by an exception, or that could not be written.
        frames: good frames that were collected.
        frames_discarded: those of them that nobody will get.
        frames_written: those of them that the worker has written itself to a replay buffer.
    """

    env_errors: int = 0
    restarts: int = 0
    fragments_lost: int = 0
    frames: int = 0
    frames_discarded: int = 0
    frames_written: int = 0

    @property
    def frames_left(self) -> int:
        """Those that were sent, or, of a worker that writes itself, wait to be written."""
        return self.frames - self.frames_discarded - self.frames_written


@dataclass(frozen=True)
class FragmentRequest:
    """A request for one fragment.

    Attributes:
        frames: how many to make, rounded up to whole steps; 0 for as many as before.
        randomly: with random actions.
        number: grows with every request to any worker.
        bell: an int64 array `[W]` shared with the workers; a worker stops at its next step once its entry has reached
            the number. `None` if nobody stops it.
        entry: of the worker in that array.
    """

    frames: int = 0
    randomly: bool = False
    number: int = 0
    bell: Any = None
    entry: int = 0


@dataclass
class Head:
    """What is known of a fragment before its arrays are fetched.

    Attributes:
        life: in which life of its worker it was made.
        version: the policy version that acted.
        frames: how many rows are transitions.
        steps: how many of its T steps were made.
        packed: the episodes that ended in it, as bytes.
        next_id: above every trajectory id given.
        number: of the fragment in this life, from 1; those that were not delivered have numbers, too.
        since: `next_id` before it was made.
        tally: counts of this life, this fragment included.
        writes: how often the worker has called `extend` with what it made of it.
        frames_written: how many frames it has written then.
    """

    life: int
    version: int
    frames: int
    steps: int
    packed: bytes
    next_id: int
    number: int = 0
    since: int = 0
    tally: Tally = field(default_factory=Tally)
    writes: int = 0
    frames_written: int = 0

    @property
    def episodes(self) -> EpisodeArray:
        """The episodes that ended in it."""
        return unpacked(self.packed)


@dataclass(frozen=True)
class Broken:
    """There is no fragment: the env, the policy or a hook raised. Crosses borders as `outcome.frozen` writes it.

    Attributes:
        error: the exception.
        tally: counts of this life.
        unfit: whether the worker cannot go on, and has to be replaced.
    """

    error: BaseException
    tally: Tally
    unfit: bool = False

    def __reduce__(self) -> Any:
        """With the remote traceback in a note of the exception."""
        return _broken, (frozen(self.error, one_note=True), self.tally, self.unfit)


def _broken(error: bytes, tally: Tally, unfit: bool) -> Broken:
    return Broken(thawed(error), tally, unfit)
