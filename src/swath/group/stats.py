"""Counts of a collection."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from swath.errors import warn
from swath.rollout.episodes.statistics import EpisodeLog


@dataclass
class Counters:
    """Totals of one collection; any thread may count.

    Attributes:
        frames: valid frames delivered to the user or written to a buffer.
        batches: batches delivered or written.
        episodes: episodes that have ended.
        frames_discarded: good frames that were never delivered.
        frames_dropped: good frames that were too old to be delivered.
        batches_dropped: fragments that were too old.
        batches_overdue: fragments that were delivered although they were too old.
        seconds_waiting: time that draws have waited.
    """

    frames: int = 0
    batches: int = 0
    frames_discarded: int = 0
    frames_dropped: int = 0
    batches_dropped: int = 0
    batches_overdue: int = 0
    seconds_waiting: float = 0.0
    episodes: EpisodeLog = field(default_factory=EpisodeLog, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _began: float | None = field(default=None, repr=False)
    _frames_before: int = field(default=0, repr=False)

    def deliver(self, frames: int, *, batches: int = 1) -> None:
        """Count a batch that was handed out or written; with 0 `batches` a part of one."""
        with self._lock:
            self.batches += batches
            self.frames += frames

    def discard(self, frames: int) -> None:
        """Count good frames that will never be delivered."""
        with self._lock:
            self.frames_discarded += frames

    def drop(self, frames: int) -> None:
        """Count a fragment that was too old."""
        with self._lock:
            self.frames_dropped += frames
            self.batches_dropped += 1

    def overdue(self) -> None:
        """Count a fragment that is delivered although it is too old; warn once."""
        with self._lock:
            self.batches_overdue += 1
            first = self.batches_overdue == 1
        if first:
            warn(
                "weights are published faster than fragments are made, so that every fragment is older than "
                "max_staleness allows; one after each that is dropped is delivered: raise max_staleness, "
                "publish less often, or lower frames_per_batch"
            )

    def restore(self, frames: int, batches: int) -> None:
        """Set the counts to saved ones; frames per second stay those since the first draw."""
        with self._lock:
            self._frames_before += frames - self.frames
            self.frames, self.batches = frames, batches

    def start_clock(self) -> None:
        """Start the clock at the first draw."""
        if self._began is None:
            self._began = time.monotonic()
            self._frames_before = self.frames

    @property
    def seconds(self) -> float:
        """Return the seconds since the first draw began; 0 before it."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    @property
    def fps(self) -> float:
        """Return the delivered frames per second since the first draw."""
        if self._began is None:
            return 0.0
        return (self.frames - self._frames_before) / max(self.seconds, 1e-9)


def viewed(workers: str, aggregate: dict[str, Any], per_worker: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of one of the views.

    Raises:
        ValueError: an unknown view.
    """
    views = {"aggregate": aggregate, "per_worker": per_worker, "both": {**aggregate, **per_worker}}
    if workers not in views:
        raise ValueError(f"workers must be one of {', '.join(map(repr, views))}, got {workers!r}")
    return views[workers]
