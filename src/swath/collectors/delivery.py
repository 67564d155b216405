"""From a fragment to what is delivered.

Fragment ─▶ batch [*B, T] ─▶ split, or whole episodes ─▶ postproc ─▶ without private entries ─▶ hook ─▶ delivered
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.errors import noted, warn
from swath.group.stats import Counters
from swath.keys import MASK, TRAJ_IDS, is_private
from swath.options import TrajFormat, count
from swath.rollout.episodes.assemble import EpisodeAssembler
from swath.rollout.episodes.reshape import split_trajectories
from swath.rollout.episodes.statistics import NO_EPISODES, EpisodeArray, joined
from swath.rollout.fragment import Fragment, Layout
from swath.rollout.tensordicts import drop_private


@dataclass(frozen=True)
class Trajectories:
    """How batches are made of episodes.

    Attributes:
        split: one row per trajectory in each batch.
        per_batch: batches of this many complete episodes.
        per_write: episodes per write to a replay buffer; `None` for all that are complete.
        layout: `"padded"` (also `None`) or `"cat"`.
    """

    split: bool = False
    per_batch: int | None = None
    per_write: int | None = None
    layout: TrajFormat | None = None

    def __post_init__(self) -> None:
        if self.layout not in (None, *get_args(TrajFormat)):
            raise ValueError(f"traj_format={self.layout!r} must be 'padded' or 'cat'")
        for name, value in (("trajs_per_batch", self.per_batch), ("trajs_per_write", self.per_write)):
            if value is not None:
                count(name, value)
        for name, given in (("trajs_per_write", self.per_write), ("traj_format", self.layout)):
            if self.per_batch is None and given is not None:
                raise ValueError(f"{name}={given!r} needs trajs_per_batch; set it, or leave {name} out")
        if self.per_batch is not None and self.split:
            raise ValueError("split_trajs and trajs_per_batch are two ways to the same end; set one of them")

    def least(self, *, writing: bool) -> int:
        """How many complete episodes a batch, or a write to a replay buffer, waits for."""
        return (self.per_write if writing else self.per_batch) or 1


@dataclass(frozen=True)
class Hooks:
    """Functions of the user that are called around a fragment.

    Attributes:
        postproc: turns a batch into the batch that is delivered.
        before: called before each fragment.
        after: called with what is delivered.
    """

    postproc: Callable[[Any], Any] | None = None
    before: Callable[[], Any] | None = None
    after: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        names = {"postproc": self.postproc, "pre_collect_hook": self.before, "post_collect_hook": self.after}
        for name, hook in names.items():
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} is of type {type(hook).__name__}; it must be callable or None")


class Part(NamedTuple):
    """A batch, or what is written of one at a time, and the episodes that end in it."""

    batch: Any
    episodes: EpisodeArray

    @property
    def frames(self) -> int:
        """How many rows are frames."""
        return valid_frames(self.batch)


@dataclass
class Shaper:
    """Turns fragments into batches.

    Attributes:
        layout: names and extras of a batch.
        trajectories: how batches are made of episodes.
        hooks: the user's functions.
        device: where batches live; `None` leaves them without a device.
        keep_ids: whether trajectory ids are delivered; whole episodes are told apart by them in any case.
    """

    layout: Layout
    trajectories: Trajectories = field(default_factory=Trajectories)
    hooks: Hooks = field(default_factory=Hooks)
    device: torch.device | None = None
    keep_ids: bool = True

    def __post_init__(self) -> None:
        self._placed: Any = None
        written_freely = self.hooks.postproc is not None or self.layout.open
        self._may_have_private = written_freely or any(map(is_private, self.layout.observation))

    def plain(self, fragment: Fragment) -> TensorDict:
        """The batch `[*B, T]` of one fragment, on the storing device."""
        return self.placed(fragment.to_tensordict(self.layout))

    def placed(self, batch: Any) -> Any:
        """The batch on the storing device."""
        return batch if self.device is None else batch.to(self.device)

    def finish(self, batch: TensorDictBase) -> Any:
        """Post-processing, in the order of the contract."""
        batch = self.without_ids(batch)
        if self.trajectories.split:
            batch = split_trajectories(batch)
        if self.hooks.postproc is not None:
            batch = self._postproc(self.hooks.postproc, batch)
        if self._may_have_private:
            drop_private(batch)
        if self.hooks.after is not None:
            with noted("post_collect_hook"):
                self.hooks.after(batch)
        return batch

    def without_ids(self, batch: TensorDictBase) -> TensorDictBase:
        """The batch without ids that are only there to tell episodes apart."""
        return batch if self.keep_ids or not self.layout.extras.track_ids else batch.exclude(TRAJ_IDS)

    def written(self, buffer: Any, batch: Any) -> Any:
        """What a replay buffer gets of a finished batch."""
        return fitted_to(buffer, batch, by_frame=not self.trajectories.split)

    def _postproc(self, postproc: Callable[[Any], Any], batch: Any) -> Any:
        """What the user's function makes of a batch; a module is moved to the batch's device once."""
        if isinstance(postproc, torch.nn.Module) and self._placed is not postproc:
            if batch.device is not None:
                postproc.to(batch.device)
            self._placed = postproc
        with noted("postproc"):
            made = postproc(batch)
        if made is None:
            raise TypeError("postproc returned None; it must return the batch to be delivered")
        return made


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


@dataclass(frozen=True)
class Drawn:
    """What a draw gave.

    Attributes:
        batch: the batch; `None` at the end, and where it was written to a buffer.
        ended: the run is over.
    """

    batch: Any
    ended: bool = False


@dataclass(frozen=True)
class Delivery:
    """Delivers batches of one collection.

    Attributes:
        shaper: post-processes them.
        counters: count them.
        require_open: raises if the collection was shut down meanwhile.
        buffer: where they are written, if anywhere.
    """

    shaper: Shaper
    counters: Counters
    require_open: Callable[[], None]
    buffer: Any = None

    def deliver(self, parts: Sequence[Part]) -> Drawn:
        """Hand out one batch, or write its parts one after another; together they are one batch.

        Raises:
            Closed: shut down meanwhile.
            Exception: what a function of the user's or the buffer raised; what was not written is discarded.
        """
        frames = [part.frames for part in parts]
        written = 0
        try:
            for part in parts:
                finished = self.shaper.finish(part.batch)
                self.require_open()
                if self.buffer is not None:
                    with noted("extend() of the replay buffer"):
                        self.buffer.extend(self.shaper.written(self.buffer, finished))
                written += 1
        except BaseException:
            self.counters.discard(sum(frames[written:]))
            self.counters.add(sum(frames[:written]), joined(part.episodes for part in parts[:written]))
            raise
        self.counters.deliver(sum(frames), joined(part.episodes for part in parts))
        return Drawn(None if self.buffer is not None else finished)


POLLS_BEFORE_WARNING = 100


@dataclass
class Polls:
    """Warns once when no episode has ended in many fragments."""

    in_vain: int = 0
    _warned: bool = False

    def note(self, frames: int, *, finished: bool) -> None:
        """So many frames were collected, and episodes have ended in them or not."""
        self.in_vain = 0 if finished else self.in_vain + 1
        if self.in_vain == POLLS_BEFORE_WARNING and not self._warned:
            self._warned = True
            _warn_of_endless_episodes(frames)


@dataclass
class WholeEpisodes:
    """Collects the episodes of one collection; for one thread at a time.

    Attributes:
        wanted: how many to a batch, and how they are laid out.
        counters: count what is dropped.
        writing: whether batches are written to a replay buffer.
        polls: warn of episodes without an end; `None` where others do.
    """

    wanted: Trajectories
    counters: Counters
    writing: bool = False
    polls: Polls | None = field(default_factory=Polls)

    def __post_init__(self) -> None:
        self._assembler = EpisodeAssembler()
        self._ended = NO_EPISODES

    @property
    def frames(self) -> int:
        """How many frames wait."""
        return self._assembler.frames

    def add(self, fragments: Mapping[int, Part]) -> None:
        """Take in fragments `[*B, T]` that were collected side by side, by worker."""
        ready = self._assembler.ready
        batches = {worker: fragment.batch for worker, fragment in fragments.items()}
        self.counters.discard(self._assembler.add(batches))
        self._remember(fragment.episodes for fragment in fragments.values())
        if self.polls is not None:
            frames = sum(batch.numel() for batch in batches.values())
            self.polls.note(frames, finished=self._assembler.ready > ready)

    def take(self) -> Part | None:
        """A batch; `None` if too few episodes are complete."""
        wanted, assembler = self.wanted, self._assembler
        if assembler.ready < wanted.least(writing=self.writing):
            return None
        if self.writing:
            return self._taken(wanted.per_write or assembler.ready, "cat")
        return self._taken(wanted.least(writing=False), wanted.layout or "padded")

    def drop(self, worker: int | None = None, envs: list[int] | None = None) -> None:
        """Forget what waits for a batch, all or of one worker or of some of its envs; it is counted."""
        self.counters.discard(self._assembler.drop(worker, envs))

    def skip(self, worker: int, below: int) -> None:
        """Frames of a worker are missing: forget its episodes with ids below this one, also what comes of them."""
        self.counters.discard(self._assembler.skip(worker, below))

    def drop_open(self, worker: int) -> None:
        """Forget a worker's episodes without an end; they are counted."""
        self.counters.discard(self._assembler.drop(worker, complete=False))

    def _remember(self, episodes: Iterable[EpisodeArray]) -> None:
        """Keep the numbers of the complete episodes, in the order in which they are taken; forget the others."""
        known = joined([self._ended, *episodes])
        at = {trajectory: index for index, trajectory in enumerate(known["trajectory"].tolist())}
        kept = [at[trajectory] for trajectory in self._assembler.trajectories if trajectory in at]
        self._ended = known[np.array(kept, dtype=np.int64)]

    def _taken(self, count: int, layout: TrajFormat) -> Part:
        taken = np.isin(self._ended["trajectory"], self._assembler.trajectories[:count])
        episodes, self._ended = self._ended[taken], self._ended[~taken]
        return Part(self._assembler.take(count, layout), episodes)


def _warn_of_endless_episodes(poll: int) -> None:
    warn(
        f"no episode has ended in {POLLS_BEFORE_WARNING} fragments of {poll} frames; "
        "trajs_per_batch waits for whole episodes: set max_frames_per_traj to end them"
    )
