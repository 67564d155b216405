"""Batches of whole episodes: fragments are kept until enough of their episodes are complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from swath.collectors.delivery import Part
from swath.errors import warn
from swath.group.stats import Counters
from swath.options import Trajectories, TrajFormat
from swath.rollout.episodes.assemble import EpisodeAssembler
from swath.rollout.episodes.statistics import NO_EPISODES, EpisodeArray, joined

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
