"""What a collection has done, in numbers."""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from swath.errors import warn
from swath.rollout.fragment import Fragment
from swath.rollout.spaces import Array

REMEMBERED = 100


Episodes: TypeAlias = tuple[tuple[float, int], ...]
"""Return and length of episodes, in order of their ends."""

Place: TypeAlias = tuple[int, ...]
"""Of a fragment among others: those that are made for one batch come in the order of its rows, whichever is first."""


class EpisodeLog:
    """Finished episodes: how many, and means over the last 100."""

    def __init__(self) -> None:
        self.finished = 0
        self.told: Callable[[Episodes], None] | None = None  # whoever wants to know of each
        self._fragments: deque[tuple[Place, Episodes]] = deque()

    @property
    def mean_return(self) -> float | None:
        """Mean over the last 100 episodes; `None` before the first."""
        return float(np.mean([value for value, _ in last])) if (last := self._last()) else None

    @property
    def mean_length(self) -> float | None:
        """Mean steps of the last 100 episodes; `None` before the first."""
        return float(np.mean([length for _, length in last])) if (last := self._last()) else None

    def book(self, episodes: Episodes, place: Place = ()) -> None:
        """These have ended, in a fragment that has this place among others; without one it is the last."""
        if episodes:
            insort(self._fragments, (place, episodes), key=itemgetter(0))
            self._forget()
        self.finished += len(episodes)
        if self.told is not None:
            self.told(episodes)

    def _forget(self) -> None:
        spare = sum(len(episodes) for _, episodes in self._fragments) - REMEMBERED
        while spare >= len(self._fragments[0][1]):
            spare -= len(self._fragments.popleft()[1])

    def _last(self) -> Episodes:
        return tuple(episode for _, episodes in tuple(self._fragments) for episode in episodes)[-REMEMBERED:]


class EpisodeMeter(EpisodeLog):
    """Returns and lengths of the episodes in the fragments of one worker.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self._return = np.zeros(num_envs)

    def add(self, fragment: Fragment) -> Episodes:
        """Book the rows of the next fragment; an episode that it begins with was given up where none ended before.

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
        lengths = (fragment.counts[envs, steps] + 1)[order].tolist()
        episodes = tuple(zip(sums[ended][order].tolist(), lengths, strict=True))
        self.book(episodes)
        return episodes


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


@dataclass
class Counters:
    """Totals of one collection; any thread may count.

    Attributes:
        frames: valid frames delivered to the user or written to a buffer.
        batches: batches delivered or written.
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
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _began: float | None = field(default=None, repr=False)
    _frames_before: int = field(default=0, repr=False)

    def deliver(self, frames: int) -> None:
        """A batch was handed out or written."""
        with self._lock:
            self.frames += frames
            self.batches += 1

    def add(self, frames: int) -> None:
        """Part of a batch was written; the rest of it was not."""
        with self._lock:
            self.frames += frames

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
