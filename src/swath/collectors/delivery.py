"""From fragments that lie elsewhere to what is delivered.

fragments, views into foreign memory ─▶ one copy: a batch that the user owns, [*B, T] or [W, *B, T]
    ─▶ split, or whole episodes ─▶ postproc ─▶ without private entries ─▶ hook ─▶ handed out, or written
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from swath.collectors.gather import head_of
from swath.collectors.messages import Description, Head, WriteRequest
from swath.collectors.options import Hooks, Trajectories
from swath.errors import noted, warn
from swath.group.group import Request
from swath.group.stats import Counters
from swath.keys import MASK, TIME, TRAJ_IDS, drop_private, is_private
from swath.options import TrajFormat
from swath.rollout.buffer import Fragment, Layout, Rows
from swath.rollout.episodes.reshape import EpisodeAssembler, split_trajectories

CPU = torch.device("cpu")


ENDED = object()
"""What a draw gives when the run is over."""


@dataclass
class Delivery:
    """Post-processes batches, and hands them out or writes them.

    Attributes:
        layout: names and extras of a batch.
        trajectories: how batches are made of episodes.
        hooks: the user's functions.
        counters: count what is delivered.
        require_open: raises if the collection was shut down meanwhile.
        keep_ids: whether trajectory ids are delivered; whole episodes are told apart by them in any case.
        buffer: where batches are written, if anywhere.
        where: whose buffer that is, for notes.
    """

    layout: Layout
    trajectories: Trajectories
    hooks: Hooks
    counters: Counters
    require_open: Callable[[], None]
    keep_ids: bool = True
    buffer: Any = None
    where: str = ""

    def __post_init__(self) -> None:
        self._placed: Any = None
        written_freely = self.hooks.postproc is not None or self.layout.open
        self._may_have_private = written_freely or any(map(is_private, self.layout.observation))

    def deliver(self, parts: Sequence[Any]) -> Any:
        """Hand out one batch, or write its parts one after another, which gives `None`; together they are one batch.

        Raises:
            Closed: shut down meanwhile.
            Exception: what a function of the user's or the buffer raised; what was not written is discarded.
        """
        frames, written = [valid_frames(part) for part in parts], 0
        try:
            for part in parts:
                finished = self._finished(part)
                self.require_open()
                if self.buffer is not None:
                    with noted(f"extend() of the replay buffer{self.where}"):
                        self.buffer.extend(fitted_to(self.buffer, finished, by_frame=not self.trajectories.split))
                written += 1
        finally:
            self.counters.discard(sum(frames[written:]))
            self.counters.deliver(sum(frames[:written]), batches=written == len(parts))
        return None if self.buffer is not None else finished

    def without_ids(self, batch: TensorDictBase) -> TensorDictBase:
        """The batch without ids that are only there to tell episodes apart."""
        return batch if self.keep_ids or not self.layout.track_ids else batch.exclude(TRAJ_IDS)

    def _finished(self, batch: TensorDictBase) -> Any:
        """Post-processing, in the order of the contract; a module is moved to the batch's device once."""
        batch, postproc = self.without_ids(batch), self.hooks.postproc
        if self.trajectories.split:
            batch = split_trajectories(batch)
        if postproc is not None:
            if isinstance(postproc, torch.nn.Module) and self._placed is not postproc:
                if batch.device is not None:
                    postproc.to(batch.device)
                self._placed = postproc
            with noted("postproc"):
                batch = postproc(batch)
            if batch is None:
                raise TypeError("postproc returned None; it must return the batch to be delivered")
        if self._may_have_private and isinstance(batch, TensorDictBase):
            drop_private(batch)
        if self.hooks.after is not None:
            with noted("post_collect_hook"):
                self.hooks.after(batch)
        return batch


def valid_frames(batch: TensorDictBase) -> int:
    """How many rows of a batch are frames: masked ones are not."""
    mask = batch.get(MASK, None)
    return int(batch.numel() if mask is None else mask.sum())


def fitted_to(buffer: Any, batch: Any, *, by_frame: bool) -> Any:
    """What is written of a batch: on the device that the buffer's storage names, if it names one.

    Args:
        buffer: a replay buffer. One whose entries have one dimension, as TorchRL's by default, gets frames, one after
            another, without rows that are none.
        batch: `[*B, T]`.
        by_frame: whether rows are frames; else they are trajectories, and stay whole.
    """
    storage = getattr(buffer, "storage", None)
    flat = getattr(buffer, "dim_extend", None) == 0 and getattr(storage, "ndim", 1) == 1
    if by_frame and flat and isinstance(batch, TensorDictBase):
        mask = batch.get(MASK, None)
        batch = batch.reshape(-1)
        if mask is not None:
            batch = batch[mask.reshape(-1)]
    device = getattr(storage, "device", None)
    return batch if device in (None, "auto") else batch.to(device)


class WholeEpisodes:
    """Collects the episodes of one collection; for one thread at a time.

    Args:
        wanted: how many to a batch, and how they are laid out.
        counters: count what is dropped.
        writing: whether batches are written to a replay buffer.
    """

    def __init__(self, wanted: Trajectories, counters: Counters, *, writing: bool) -> None:
        self._counters, self._assembler = counters, EpisodeAssembler()
        self._number = wanted.per_write if writing else wanted.per_batch  # `None` for all that are complete
        self._layout: TrajFormat = "cat" if writing else wanted.layout or "padded"
        self._last: dict[int, tuple[int, int]] = {}  # by worker, the fragment that came last: its life and number

    def add(self, fragments: Iterable[tuple[int, Head, Any]]) -> None:
        """Take in fragments, as batches `[*B, T]`, that were collected side by side, with their workers.

        Where a fragment of a worker was not delivered before one of these, its episodes that lack frames are dropped.
        """
        made = sorted(fragments, key=lambda one: (one[1].life, one[1].number))
        while made:  # of each worker one, the one that it made first
            first = {worker: (head, batch) for worker, head, batch in reversed(made)}
            made = [one for one in made if one[1] is not first[one[0]][0]]
            for worker, (head, _) in first.items():
                life, number = self._last.get(worker, (head.life, 0))
                if head.number != (number + 1 if life == head.life else 1):
                    self._counters.discard(self._assembler.drop_below(worker, head.since))
                self._last[worker] = head.life, head.number
            self._counters.discard(self._assembler.add({worker: batch for worker, (_, batch) in first.items()}))

    def take(self) -> Any:
        """A batch; `None` if too few episodes are complete."""
        number = self._assembler.ready if self._number is None else self._number
        return self._assembler.take(number, self._layout) if number else None

    def drop(
        self, workers: Iterable[int | None] = (None,), envs: list[int] | None = None, *, complete: bool = True
    ) -> None:
        """Forget what waits for a batch, all or of some workers or of some of their envs; it is counted.

        Args:
            workers: whose.
            envs: of which.
            complete: also episodes that have an end.
        """
        for worker in workers:
            self._counters.discard(self._assembler.drop(worker, envs, complete=complete))


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
            fragment, layout = body if self.own else side_by_side([body]), self.described[share.worker].layout
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
        return side_by_side(bodies).to_tensordict(replace(layout, batch_shape=(len(bodies), *layout.batch_shape)))
    batches = [body.to_tensordict(layout) if isinstance(body, Fragment) else body for body in bodies]
    together = LazyStackedTensorDict.maybe_dense_stack(batches, dim=0)
    if isinstance(together, LazyStackedTensorDict):
        together = LazyStackedTensorDict(*[batch.clone() for batch in batches], stack_dim=0)
    together.refine_names(..., TIME)
    return together


def side_by_side(fragments: Sequence[Fragment]) -> Fragment:
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


class ReplayWriter:
    """Writes the fragments of one worker. Lives in the worker, for its one thread.

    Args:
        request: with what.
        layout: names and extras of its fragments.
        hooks: the user's functions that are called with what is written.
        device: where batches live; `None` leaves them without a device.
        where: which worker this is, for notes.
    """

    def __init__(self, request: WriteRequest, layout: Layout, hooks: Hooks, device: Any, where: str) -> None:
        wanted, self._asked, self._device, self.counters = request.trajectories, request, device, Counters()
        of_its_own = request.keep_ids, request.client, f" in {where}"
        # Whoever asks a worker sees to it that nobody does after shutdown.
        self.delivery = Delivery(layout, wanted, hooks, self.counters, lambda: None, *of_its_own)
        self._whole = None if wanted.per_batch is None else WholeEpisodes(wanted, self.counters, writing=True)

    def write(self, head: Head, body: Any) -> None:
        """Write a fragment, or a batch that was made of one; or add it to the episodes and write what is complete.

        Raises:
            Exception: what a function of the user's or the buffer raised; what was not written is discarded.
        """
        before = self.counters.frames
        for part in self._parts(head, body):
            self.delivery.deliver([part])
            head.writes += 1
        head.frames_written = self.counters.frames - before

    def drop(self) -> None:
        """Forget what waits for the end of its episode or for the next write."""
        if self._whole is not None:
            self._whole.drop()

    def _parts(self, head: Head, body: Any) -> Iterator[Any]:
        """What is written at a time."""
        layout = self.delivery.layout
        batch = body.to_tensordict(layout) if isinstance(body, Fragment) else body
        if head.steps < batch.shape[-1] and not layout.masked:
            return  # a shutdown has ended the fragment
        batch = batch if self._device is None else batch.to(self._device)
        batch = batch[..., : head.steps] if self._asked.cut else batch
        if self._whole is None:
            yield batch
            return
        self._whole.add([(0, head, batch)])
        while (episodes := self._whole.take()) is not None:
            yield episodes
