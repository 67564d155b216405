"""What a run shows while it goes on: the protocol, and plain lines for pipes and log files."""

from __future__ import annotations

import time
from math import isnan
from typing import TYPE_CHECKING, Protocol

from swath.report.text import duration, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from swath.report.status import EvalPoint, RunTitle, Status

LINES_PER_RUN = 20
SECONDS_BETWEEN_LINES = 60.0


class Display(Protocol):
    """Shows a run."""

    def update(self, status: Status) -> None:
        """Show where the run stands."""

    def evaluated(self, point: EvalPoint) -> None:
        """Show an evaluation."""

    def say(self, text: str) -> None:
        """Show a remark of one line, to stay."""

    def doing(self, text: str) -> None:
        """Show what goes on just now, for as long as it does; empty: the usual."""

    def close(self) -> None:
        """Leave the last picture and give the terminal back; closing twice is fine."""


class PlainDisplay:
    """One line per twentieth of the run or per minute, whichever comes first, and one per evaluation.

    Args:
        console: where the lines go.
        title: what stays the same.
        clock: seconds, monotonic.
    """

    def __init__(self, console: Console, title: RunTitle, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._title, self._clock = console, title, clock
        self._line_at, self._time_at = 0, clock() + SECONDS_BETWEEN_LINES
        self.say(f"{title.env}: {', '.join(title.details)}, {title.total_frames:,} frames")

    def update(self, status: Status) -> None:
        """Print a line if one is due."""
        now, total = self._clock(), self._title.total_frames
        if status.frames < min(self._line_at, total) and now < self._time_at:
            return
        self._line_at = status.frames + max(total // LINES_PER_RUN, 1)
        self._time_at = now + SECONDS_BETWEEN_LINES
        self.say(status_line(status, total))

    def evaluated(self, point: EvalPoint) -> None:
        """Print a line."""
        self.say(f"{point.frames:,} frames: evaluation {eval_line(point)}, {point.episodes} episodes")

    def say(self, text: str) -> None:
        """Print a line as it is, however long, and flush it."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)
        self._console.file.flush()

    def doing(self, text: str) -> None:
        """Print nothing: lines are for results."""

    def close(self) -> None:
        """Do nothing: every line is out already."""


def status_line(status: Status, total: int) -> str:
    """The status in one line."""
    parts = [
        f"{status.frames:,} of {total:,} frames ({min(100 * status.frames / total, 100):.0f} %)",
        f"return {number(status.episode_return)}",
        f"length {number(status.episode_length)}",
        *(f"{name} {number(value)}" for name, value in status.losses.items()),
        *status.seen.trouble,
        f"{status.frames_per_second:,.0f} frames/s",
        f"{duration(status.seconds_left)} left",
    ]
    return ", ".join(parts)


def eval_line(point: EvalPoint) -> str:
    """An evaluation as `475.3 [451, 498]`; without the interval where there is none."""
    interval = f" [{number(point.low)}, {number(point.high)}]"
    return number(point.mean) + ("" if isnan(point.low) else interval)
