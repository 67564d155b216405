"""What a collection has done, in numbers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from swath.rollout.fragment import Fragment
from swath.rollout.spaces import Array

REMEMBERED = 100


class EpisodeMeter:
    """Returns and lengths of finished episodes, over fragments.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        self.finished = 0
        self._returns: deque[float] = deque(maxlen=REMEMBERED)
        self._lengths: deque[int] = deque(maxlen=REMEMBERED)
        self._return = np.zeros(num_envs)

    @property
    def mean_return(self) -> float | None:
        """Mean over the last 100 episodes; `None` before the first."""
        return float(np.mean(self._returns)) if self._returns else None

    @property
    def mean_length(self) -> float | None:
        """Mean steps of the last 100 episodes; `None` before the first."""
        return float(np.mean(self._lengths)) if self._lengths else None

    def forget(self, envs: Sequence[int] | None = None) -> None:
        """Running episodes of these envs (all by default) were given up."""
        self._return[slice(None) if envs is None else list(envs)] = 0

    def add(self, fragment: Fragment) -> None:
        """Book the rows of the next fragment."""
        rows, last = fragment.rows, fragment.rows.last
        reward = rows.reward.astype(np.float64)
        if rows.valid is not None:
            reward = np.where(rows.valid, reward, 0.0)
        total = np.cumsum(reward, axis=1)
        steps, envs = np.nonzero(last.T)
        lengths = fragment.counts[envs, steps] + 1
        begun = steps - lengths
        earlier = np.where(begun >= 0, total[envs, np.maximum(begun, 0)], 0.0)
        returns = total[envs, steps] - earlier + np.where(begun < -1, self._return[envs], 0.0)
        self._returns.extend(returns.tolist())
        self._lengths.extend(lengths.tolist())
        self.finished += len(envs)
        self._carry(last, total)

    def _carry(self, last: Array, total: Array) -> None:
        """What running episodes have earned so far."""
        ended = last.any(axis=1)
        final = last.shape[1] - 1 - np.argmax(last[:, ::-1], axis=1)
        rows = np.arange(len(last))
        self._return = np.where(ended, total[:, -1] - total[rows, final], self._return + total[:, -1])


@dataclass
class Counters:
    """Totals of one collection.

    Attributes:
        frames: valid frames delivered to the user or written to a buffer.
        batches: batches delivered or written.
        asked: batches asked for.
        frames_discarded: good frames that were never delivered.
        seconds_waiting: time that draws have waited.
    """

    frames: int = 0
    batches: int = 0
    asked: int = 0
    frames_discarded: int = 0
    seconds_waiting: float = 0.0
    _began: float | None = field(default=None, repr=False)
    _frames_before: int = field(default=0, repr=False)

    def start_clock(self) -> None:
        """The first draw begins."""
        if self._began is None:
            self._began = time.monotonic()
            self._frames_before = self.frames

    @property
    def fps(self) -> float:
        """Delivered frames a second since the first draw."""
        if self._began is None:
            return 0.0
        return (self.frames - self._frames_before) / max(time.monotonic() - self._began, 1e-9)
