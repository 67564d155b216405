"""What a collection has done, in numbers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from swath.errors import warn
from swath.rollout.fragment import Fragment
from swath.rollout.spaces import Array

REMEMBERED = 100
VIEWS = ("aggregate", "per_worker", "both")


Score: TypeAlias = tuple[float, int]
"""Return and length of an episode."""


class Ended(NamedTuple):
    """An episode that has ended."""

    trajectory: int
    score: Score


Episodes: TypeAlias = tuple[Ended, ...]
"""In order of their ends."""


class EpisodeLog:
    """Finished episodes: how many, and means over the last 100."""

    def __init__(self) -> None:
        self.finished = 0
        self._last: deque[Score] = deque(maxlen=REMEMBERED)

    @property
    def mean_return(self) -> float | None:
        """Mean over the last 100 episodes; `None` before the first."""
        return float(np.mean([value for value, _ in last])) if (last := tuple(self._last)) else None

    @property
    def mean_length(self) -> float | None:
        """Mean steps of the last 100 episodes; `None` before the first."""
        return float(np.mean([length for _, length in last])) if (last := tuple(self._last)) else None

    def book(self, scores: Sequence[Score]) -> None:
        """These have ended, one after another."""
        self._last.extend(scores)
        self.finished += len(scores)


class EpisodeMeter:
    """Returns and lengths of the episodes in the fragments of one worker.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        self._return = np.zeros(num_envs)

    def add(self, fragment: Fragment) -> Episodes:
        """Take in the rows of the next fragment; an episode that it begins with was given up where none ended before.

        Returns:
            The episodes that end in it.
        """
        rows, last = fragment.rows, fragment.rows.last
        fresh = fragment.counts[:, 0] == 0
        self._return[fresh if rows.valid is None else fresh & rows.valid[:, 0]] = 0
        reward = rows.reward if rows.valid is None else np.where(rows.valid, rows.reward, np.float32(0))
        envs, steps = np.nonzero(last)
        sums, first = _sums_between_ends(reward, envs, steps)
        sums[first] += self._return
        self._return = sums[np.append(first[1:], len(sums)) - 1]
        ended = np.ones(len(sums), dtype=np.bool_)
        ended[np.append(first[1:], len(sums)) - 1] = False
        order = np.lexsort((envs, steps))
        ids, counts = (labels[envs, steps][order] for labels in (fragment.ids, fragment.counts))
        scores = zip(sums[ended][order].tolist(), (counts + 1).tolist(), strict=True)
        return tuple(map(Ended, ids.tolist(), scores))


def _sums_between_ends(reward: Array, envs: Array, steps: Array) -> tuple[Array, Array]:
    """Sums in float64 of the rewards up to and including each end, and after the last end, row by row.

    Args:
        reward: `[B, T]`.
        envs: row of each end, ascending.
        steps: column of each end, ascending within a row.

    Returns:
        The sums, of each row one more than it has ends, and the index of each row's first.
    """
    n_envs, n_steps = reward.shape
    padded = np.zeros((n_envs, n_steps + 1), dtype=np.float64)
    padded[:, :-1] = reward
    begins = np.sort(np.concatenate([np.arange(n_envs) * (n_steps + 1), envs * (n_steps + 1) + steps + 1]))
    ends_before = np.concatenate([[0], np.cumsum(np.bincount(envs, minlength=n_envs))[:-1]])
    return np.add.reduceat(padded.reshape(-1), begins), ends_before + np.arange(n_envs)


def _nobody(episodes: Episodes) -> None:
    """Nobody wants to know."""


@dataclass
class Counters:
    """Totals of one collection; any thread may count.

    Attributes:
        frames: valid frames delivered to the user or written to a buffer.
        batches: batches delivered or written.
        episodes: those that ended in these frames.
        told: whoever wants to know of each of these.
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
    told: Callable[[Episodes], None] = _nobody
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _began: float | None = field(default=None, repr=False)
    _frames_before: int = field(default=0, repr=False)

    def deliver(self, frames: int, episodes: Episodes = ()) -> None:
        """A batch was handed out or written, in which these have ended."""
        with self._lock:
            self.batches += 1
            self._add(frames, episodes)

    def add(self, frames: int, episodes: Episodes = ()) -> None:
        """Part of a batch was written; the rest of it was not."""
        with self._lock:
            self._add(frames, episodes)

    def _add(self, frames: int, episodes: Episodes) -> None:
        self.frames += frames
        self.episodes.book([one.score for one in episodes])
        self.told(episodes)

    def discard(self, frames: int) -> None:
        """Good frames will never be delivered."""
        with self._lock:
            self.frames_discarded += frames

    def drop(self, frames: int) -> None:
        """A fragment was too old."""
        with self._lock:
            self.frames_dropped += frames
            self.batches_dropped += 1

    def overdue(self) -> None:
        """A fragment is delivered although it is too old: the one before it was dropped. Warns once."""
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
        """Go on counting from numbers that were saved; what is told of the time since the first draw stays true."""
        with self._lock:
            self._frames_before += frames - self.frames
            self.frames, self.batches = frames, batches

    def start_clock(self) -> None:
        """The first draw begins."""
        if self._began is None:
            self._began = time.monotonic()
            self._frames_before = self.frames

    @property
    def seconds(self) -> float:
        """Since the first draw began; 0 before it."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    @property
    def fps(self) -> float:
        """Delivered frames a second since the first draw."""
        if self._began is None:
            return 0.0
        return (self.frames - self._frames_before) / max(self.seconds, 1e-9)


def viewed(workers: str, aggregate: dict[str, Any], per_worker: dict[str, Any]) -> dict[str, Any]:
    """The facts of one of the views.

    Raises:
        ValueError: an unknown view.
    """
    views = {"aggregate": aggregate, "per_worker": per_worker, "both": {**aggregate, **per_worker}}
    if workers not in VIEWS:
        raise ValueError(f"workers must be one of {', '.join(map(repr, VIEWS))}, got {workers!r}")
    return views[workers]
