"""What a display shows: where a run stands, at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan
from typing import TYPE_CHECKING

from swath.report.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class RunTitle:
    """What stays the same during a run.

    Attributes:
        env: the env's id.
        details: a few words each, such as "8 envs" or "seed 0".
        total_frames: where the run ends.
    """

    env: str
    details: tuple[str, ...]
    total_frames: int


@dataclass(frozen=True)
class EvalPoint:
    """One evaluation: mean return with its 95 % interval (NaN: none), over so many episodes."""

    frames: int
    mean: float
    low: float = nan
    high: float = nan
    episodes: int = 0


@dataclass(frozen=True)
class Status:
    """Where a run stands.

    Attributes:
        frames: collected so far.
        frames_per_second: of the whole run, learning and evaluation included.
        seconds_left: at this rate.
        episode_return: mean over the last episodes; NaN before the first has ended.
        episode_length: likewise, in env steps.
        losses: the learner's numbers, in the order to show them.
        seen: the collector.
    """

    frames: int
    frames_per_second: float
    seconds_left: float
    episode_return: float = nan
    episode_length: float = nan
    losses: Mapping[str, float] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)


class Pace:
    """Frames per second and time left, from a clock's readings.

    Args:
        frames: the frame count at the start.
        now: the clock's reading then, in seconds.
    """

    def __init__(self, frames: int, now: float) -> None:
        self._frames, self._start = frames, now

    def rate(self, frames: int, now: float) -> float:
        """Frames per second since the start; 0 before any time has passed."""
        return (frames - self._frames) / (now - self._start) if now > self._start else 0.0

    def left(self, frames: int, total: int, now: float) -> float:
        """Seconds until `total` at this rate; infinite while the rate is 0."""
        rate = self.rate(frames, now)
        return max(total - frames, 0) / rate if rate else inf
