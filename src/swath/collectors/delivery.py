"""Delivery of batches, which are built from fragments in the memory of workers.

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

from swath.collectors.messages import Description, Head, Tally, WriteRequest, head_of
from swath.collectors.options import Hooks, Trajectories
from swath.errors import note_source, warn
from swath.group.group import Counters, Request
from swath.keys import MASK, TIME, TRAJ_IDS, drop_private, is_private
from swath.options import TrajFormat
from swath.rollout.buffer import Fragment, Layout, Rows
from swath.rollout.episodes.reshape import EpisodeAssembler, split_trajectories, valid_rows
from swath.rollout.memory import concatenate, zeros_like
from swath.workers.packing import Parcel

CPU = torch.device("cpu")


ENDED = object()
"""Returned by a draw when the run is over."""


@dataclass
class Delivery:
    """Post-processes batches, and hands them out or writes them.

    Attributes:
        layout: names and extras of a batch.
        trajectories: how batches are made of episodes.
        hooks: the user's functions.
        counters: count delivered frames and batches.
        require_open: raises if the collection was shut down meanwhile.
        keep_ids: whether trajectory ids are delivered.
        buffer: where batches are written, if anywhere.
        note: the worker that writes, for notes of exceptions.
        whole_episodes: puts episodes together, if batches are made of whole ones.
    """

    layout: Layout
    trajectories: Trajectories
    hooks: Hooks
    counters: Counters
    require_open: Callable[[], None]
    keep_ids: bool = True
    buffer: Any = None
    note: str = ""

    def __post_init__(self) -> None:
        self._moved_postproc: Any = None
        self.whole_episodes: WholeEpisodes | None = None
        if self.trajectories.per_batch is not None:
            self.whole_episodes = WholeEpisodes(self.trajectories, self.counters, writing=self.buffer is not None)
        any_entries = self.hooks.postproc is not None or self.layout.open
        self._may_have_private = any_entries or any(map(is_private, self.layout.observation))

    def deliver(self, parts: Sequence[Any]) -> Any:
        """Return one batch, or write its parts one after another and return `None`.

        Raises:
            Closed: shut down meanwhile.
            Exception: what a function of the user's or the buffer raised; parts that were not written are discarded.
        """
        frames, n_written = [count_frames(part) for part in parts], 0
        try:
            for part in parts:
                finished = self._finish(part)
                self.require_open()
                if self.buffer is not None:
                    with note_source(f"extend() of the replay buffer{self.note}"):
                        self.buffer.extend(fit_to_buffer(self.buffer, finished, by_frame=not self.trajectories.split))
                n_written += 1
        finally:
            self.counters.discard(sum(frames[n_written:]))
            self.counters.deliver(sum(frames[:n_written]), batches=n_written == len(parts))
        return None if self.buffer is not None else finished

    def without_ids(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch without ids, unless the user wants them."""
        return batch if self.keep_ids or not self.layout.track_ids else batch.exclude(TRAJ_IDS)

    def _finish(self, batch: TensorDictBase) -> Any:
        """Post-process a batch; a module is moved to the batch's device once."""
        batch, postproc = self.without_ids(batch), self.hooks.postproc
        if self.trajectories.split:
            batch = split_trajectories(batch)
        if postproc is not None:
            if isinstance(postproc, torch.nn.Module) and self._moved_postproc is not postproc:
                if batch.device is not None:
                    postproc.to(batch.device)
                self._moved_postproc = postproc
            with note_source("postproc"):
                batch = postproc(batch)
            if batch is None:
                raise TypeError("postproc returned None; it must return the batch to be delivered")
        if self._may_have_private and isinstance(batch, TensorDictBase):
            drop_private(batch)
        if self.hooks.after is not None:
            with note_source("post_collect_hook"):
                self.hooks.after(batch)
        return batch


def count_frames(batch: TensorDictBase) -> int:
    """Count the rows of a batch that are frames: masked ones are not."""
    mask = batch.get(MASK, None)
    return int(batch.numel() if mask is None else mask.sum())


def fit_to_buffer(buffer: Any, batch: Any, *, by_frame: bool) -> Any:
    """Return a batch as a replay buffer takes it, on the device of its storage.

    Args:
        buffer: a replay buffer. If its entries have one dimension, as TorchRL's by default, it gets frames, one after
            another, without masked rows.
        batch: `[*B, T]`.
        by_frame: whether rows are frames; else they are trajectories, and stay whole.
    """
    storage = getattr(buffer, "storage", None)
    flat = getattr(buffer, "dim_extend", None) == 0 and getattr(storage, "ndim", 1) == 1
    if by_frame and flat and isinstance(batch, TensorDictBase):
        batch = valid_rows(batch)
    device = getattr(storage, "device", None)
    return batch if device in (None, "auto") else batch.to(device)


class WholeEpisodes:
    """Assembles the whole episodes of one collection. Used by one thread at a time.

    Args:
        trajectories: how many to a batch, and how they are laid out.
        counters: count dropped frames.
        writing: whether batches are written to a replay buffer.
    """

    def __init__(self, trajectories: Trajectories, counters: Counters, *, writing: bool) -> None:
        self._counters, self._assembler = counters, EpisodeAssembler()
        self._number = trajectories.per_write if writing else trajectories.per_batch  # `None` for all complete ones
        self._layout: TrajFormat = "cat" if writing else trajectories.layout or "padded"
        self._last: dict[int, tuple[int, int]] = {}  # by worker, life and number of its last fragment

    def add(self, fragments: Iterable[tuple[int, Head, Any]]) -> None:
        """Add fragments that were collected at the same time: worker, head, and batch `[*B, T]` of each.

        If the fragment before one was not delivered, the episodes that lack its frames are dropped.
        """
        rest = sorted(fragments, key=lambda fragment: (fragment[1].life, fragment[1].number))
        while rest:  # the first fragment of each worker
            first = {worker: (head, batch) for worker, head, batch in reversed(rest)}
            rest = [fragment for fragment in rest if fragment[1] is not first[fragment[0]][0]]
            for worker, (head, _) in first.items():
                life, number = self._last.get(worker, (head.life, 0))
                if head.number != (number + 1 if life == head.life else 1):
                    self._counters.discard(self._assembler.drop_below(worker, head.since))
                self._last[worker] = head.life, head.number
            self._counters.discard(self._assembler.add({worker: batch for worker, (_, batch) in first.items()}))

    def next_batch(self) -> Any:
        """Return a batch; `None` if too few episodes are complete."""
        number = self._assembler.ready if self._number is None else self._number
        return self._assembler.next_batch(number, self._layout) if number else None

    def drop(
        self, workers: Iterable[int | None] = (None,), envs: list[int] | None = None, *, complete: bool = True
    ) -> None:
        """Drop and count the frames that wait for a batch.

        Args:
            workers: their indices; `None` among them means all.
            envs: their numbers; `None` for all.
            complete: also episodes that have an end.
        """
        for worker in workers:
            self._counters.discard(self._assembler.drop(worker, envs, complete=complete))


@dataclass
class Joiner:
    """Makes batches that the user owns, on the devices where batches live.

    Attributes:
        described: descriptions of workers, by index; the user may add workers.
        devices: the device of batches by worker; `None` sets none. If this process lacks a device, it warns and uses
            the CPU.
        dim: along which shares are concatenated; `None` stacks them.
        joins_workers: whether batches have fragments of several workers; these are joined on the CPU if their devices
            differ.
        reuses_arrays: whether fragments are fresh arrays, not views; they become the batch's.
    """

    described: Mapping[int, Description]
    devices: Sequence[torch.device | None]
    dim: int | None = None
    joins_workers: bool = False
    reuses_arrays: bool = False

    def __post_init__(self) -> None:
        available = {device: _available_device(device) for device in dict.fromkeys(self.devices)}
        self.devices = [available[device] for device in self.devices]
        if self.joins_workers and len(set(self.devices)) > 1:
            self.devices = [CPU]

    def batch(self, requests: Sequence[Request], bodies: Sequence[Any]) -> Any:
        """Return one batch: `[*B, T]` of one fragment, `[W, *B, T]` or concatenated of one per worker."""
        if not self.joins_workers:
            return self.part(requests[0], bodies[0])
        if self.dim is not None:
            return torch.cat([self.part(*pair) for pair in zip(requests, bodies, strict=True)], self.dim)
        return self._move(_stack(bodies, self.described[requests[0].worker].layout), 0)

    def part(self, request: Request, body: Any) -> Any:
        """Return the batch `[*B, T]` of one fragment; shares joined in time lose the steps that were not made."""
        if isinstance(body, Fragment):
            fragment, layout = body if self.reuses_arrays else join_envs([body]), self.described[request.worker].layout
            batch: Any = fragment.to_tensordict(layout)
        else:
            batch = body if self.reuses_arrays else body.clone()
        batch = self._move(batch, request.worker)
        return batch[..., : head_of(request).steps] if self.dim == -1 else batch

    def _move(self, batch: Any, worker: int) -> Any:
        """Move a batch to its device; workers that were added have the device of the first."""
        device = self.devices[worker if worker < len(self.devices) else 0]
        return batch if device is None else batch.to(device)


def _stack(bodies: Sequence[Any], layout: Layout) -> Any:
    """Return the batch `[W, *B, T]` of one fragment per worker."""
    if all(isinstance(body, Fragment) for body in bodies):
        return join_envs(bodies).to_tensordict(replace(layout, batch_shape=(len(bodies), *layout.batch_shape)))
    batches = [body.to_tensordict(layout) if isinstance(body, Fragment) else body for body in bodies]
    stack = LazyStackedTensorDict.maybe_dense_stack(batches, dim=0)
    if isinstance(stack, LazyStackedTensorDict):
        stack = LazyStackedTensorDict(*[batch.clone() for batch in batches], stack_dim=0)
    stack.refine_names(..., TIME)
    return stack


def join_envs(fragments: Sequence[Fragment]) -> Fragment:
    """Return one fragment `[ΣB, T]` in fresh arrays, with the fragments' envs one after another."""
    first, all_rows = fragments[0], list[Any](fragment.rows for fragment in fragments)
    leaves: dict[str, Any] = {
        name: [concatenate(column) for column in zip(*[getattr(rows, name) for rows in all_rows], strict=True)]
        for name in ("observation", "outputs", "infos", "last_observation")
    }
    names = ["reward", "terminated", "truncated", *(["missing"] if all_rows[0].missing is not None else [])]
    flags = {name: concatenate([getattr(rows, name) for rows in all_rows]) for name in names}
    valid, version = None, first.version
    if any([rows.valid is not None for rows in all_rows]):  # noqa: C419  faster than a generator
        valid = concatenate([~zeros_like(rows.truncated) if rows.valid is None else rows.valid for rows in all_rows])
    if len({fragment.version for fragment in fragments}) > 1:
        version = np.repeat([fragment.version for fragment in fragments], [len(fragment.ids) for fragment in fragments])
    ids = concatenate([fragment.ids for fragment in fragments])
    counts = None if first.counts is None else concatenate([fragment.counts for fragment in fragments])
    return Fragment(Rows(**leaves, **flags, **_final_rows(all_rows), valid=valid), ids, counts, version)


def _final_rows(all_rows: Sequence[Any]) -> dict[str, Any]:
    """Return the final observations of several fragments, whose envs follow one another."""
    offset, places, finals = 0, list[Any](), list[Any]()
    for rows in all_rows:
        if rows.ends_at is not None:
            envs, steps = rows.ends_at
            places.append((envs + offset, steps))
            finals.append(rows.final)
        offset += len(rows.reward)
    if not places:
        return {}
    envs, steps = map(concatenate, zip(*places, strict=True))
    return {"ends_at": (envs, steps), "final": [*map(concatenate, zip(*finals, strict=True))]}


def _available_device(device: torch.device | None) -> torch.device | None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # torch raises these for a missing device
        warn(f"storing_device={str(device)!r} is missing in this process: batches stay on the CPU")
        return CPU
    return device


class ReplayWriter:
    """Writes the fragments of one worker to a replay buffer. Used in the worker, by its only thread.

    Args:
        request: how to write.
        layout: names and extras of its fragments.
        hooks: the user's functions that are called with what is written.
        device: where batches live; `None` leaves them without a device.
        note: names the worker in notes of exceptions.
    """

    def __init__(self, request: WriteRequest, layout: Layout, hooks: Hooks, device: Any, note: str) -> None:
        trajectories, self._cut, self._device, self.counters = request.trajectories, request.cut, device, Counters()
        self._fragments_lost = 0
        options = request.keep_ids, request.client, note
        # The driver sends no requests after shutdown, so the worker need not check it.
        self.delivery = Delivery(layout, trajectories, hooks, self.counters, lambda: None, *options)

    def write(self, head: Head, body: Any) -> Parcel:
        """Write a fragment or its batch, or the episodes that it completes, and return its head alone.

        Raises:
            Exception: what a function of the user's or the buffer raised; frames that were not written are discarded.
        """
        before = self.counters.frames
        try:
            for part in self._parts(head, body):
                self.delivery.deliver([part])
                head.writes += 1
        except Exception:
            self._fragments_lost += 1
            raise
        head.frames_written = self.counters.frames - before
        self.add_counts(head.tally)
        return Parcel(head, None)

    def add_counts(self, tally: Tally) -> None:
        """Add written and lost frames to the counts of the worker."""
        tally.fragments_lost += self._fragments_lost
        tally.frames_discarded += self.counters.frames_discarded
        tally.frames_written = self.counters.frames

    def drop(self) -> None:
        """Drop the frames that wait for the end of their episode or for the next write."""
        if self.delivery.whole_episodes is not None:
            self.delivery.whole_episodes.drop()

    def _parts(self, head: Head, body: Any) -> Iterator[Any]:
        """Return the batches to write, one at a time."""
        layout, whole_episodes = self.delivery.layout, self.delivery.whole_episodes
        batch = body.to_tensordict(layout) if isinstance(body, Fragment) else body
        if head.steps < batch.shape[-1] and not layout.masked:
            return  # a shutdown has ended the fragment
        batch = batch if self._device is None else batch.to(self._device)
        batch = batch[..., : head.steps] if self._cut else batch
        if whole_episodes is None:
            yield batch
            return
        whole_episodes.add([(0, head, batch)])
        while (episodes := whole_episodes.next_batch()) is not None:
            yield episodes
