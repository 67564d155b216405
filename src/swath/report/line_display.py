"""Lines for pipes and log files."""

from __future__ import annotations

from math import inf, isfinite, isnan
from typing import TYPE_CHECKING

from swath.report.text import duration, number

if TYPE_CHECKING:
    from rich.console import Console

    from swath.report.display import Title
    from swath.report.eval_point import EvalPoint
    from swath.report.seen import Seen

LINES_PER_RUN = 20
SECONDS_BETWEEN_LINES = 60.0


class LineDisplay:
    """A line per twentieth of the run or per minute, whichever comes first, one per evaluation, and one at the end.

    Args:
        console: where the lines go.
        title: begins each line.
    """

    def __init__(self, console: Console, title: Title) -> None:
        self._console, self._title = console, title
        self._frames_at, self._seconds_at = 1.0, SECONDS_BETWEEN_LINES
        self._seen: Seen | None = None
        self._said: Seen | None = None
        if title.details:
            self._line(", ".join(title.details))

    def show(self, seen: Seen) -> None:
        """Print a line if one is due."""
        self._seen = seen
        if (seen.total and seen.frames >= self._frames_at) or seen.seconds >= self._seconds_at:
            self._status(seen)

    def evaluated(self, point: EvalPoint) -> None:
        """Print a line."""
        self._line(f"evaluation {point}")

    def say(self, text: str) -> None:
        """Print a line as it is, however long, and flush it."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)
        self._console.file.flush()

    def doing(self, text: str) -> None:
        """Print nothing: lines are for results."""

    def close(self) -> None:
        """Print the last line, unless it would say what the one before said."""
        if self._seen is not None and (self._said is None or _news(self._seen) != _news(self._said)):
            self._status(self._seen)

    def _status(self, seen: Seen) -> None:
        self._said = seen
        self._frames_at, self._seconds_at = _next_line(seen), seen.seconds + SECONDS_BETWEEN_LINES
        self._line(seen_line(seen))

    def _line(self, text: str) -> None:
        self.say(f"{self._title.name}: {text}")


def _next_line(seen: Seen) -> float:
    """At which frame; at the end of the run in any case."""
    total = seen.total or 0
    return inf if seen.frames >= total else min(seen.frames + max(total // LINES_PER_RUN, 1), total)


def _news(seen: Seen) -> object:
    """What is worth another line at the end: not that rates are others and time goes by."""
    return seen.frames, seen.trouble, seen.error


def seen_line(seen: Seen) -> str:
    """What is seen in one line."""
    done = "" if seen.share is None else f" ({100 * seen.share:.0f} %)"
    parts = [
        f"{seen.progress} frames{done}",
        f"{seen.rate:,.0f} frames/s",
        f"return {number(seen.episode_return)}",
        f"length {number(seen.episode_length)}",
        *(f"{name} {number(value)}" for name, value in seen.losses.items()),
        *([] if isnan(seen.waiting) else [f"waiting {100 * seen.waiting:.0f} %"]),
        f"version {seen.version:,}",
        *([seen.workers_up, f"{seen.staleness:,} behind"] if seen.workers_up else []),
        *seen.trouble,
        *([f"{duration(seen.seconds_left)} left"] if isfinite(seen.seconds_left) else []),
        *([seen.error] if seen.error else []),
    ]
    return ", ".join(parts)
