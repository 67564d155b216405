"""Where a collector that is watched is shown: a picture in a terminal, or a line now and then."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING, Protocol

from rich.live import Live
from rich.text import Text

from swath.report.course import Course
from swath.report.display import LINES_PER_RUN, SECONDS_BETWEEN_LINES, eval_line
from swath.report.live_display import shows_pictures
from swath.report.picture import (
    SPARK_COLUMNS,
    fact,
    fact_table,
    framed,
    headline,
    progress_bar,
    waiting_fact,
    width_on,
    worker_table,
)
from swath.report.seen import Seen
from swath.report.text import duration, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from swath.report.status import EvalPoint


class Screen(Protocol):
    """Shows a collector."""

    def show(self, seen: Seen, point: EvalPoint | None) -> None:
        """Show this, if it is time to."""

    def close(self, seen: Seen, point: EvalPoint | None) -> None:
        """Show this as the last, and give the terminal back."""


def create_screen(console: Console, title: str) -> Screen:
    """A picture where there is a terminal that can show it, else lines."""
    return PictureScreen(console, title) if shows_pictures(console) else LineScreen(console, title)


class PictureScreen:
    """Redraws a picture in place; what is printed meanwhile appears above it.

    Args:
        console: the terminal.
        title: what is watched.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._returns = Course()
        self._live = Live(self._picture(Seen(), None), console=console, auto_refresh=False)
        self._live.start(refresh=True)

    def show(self, seen: Seen, point: EvalPoint | None) -> None:
        """Redraw."""
        self._returns.add(seen.episode_return)
        self._live.update(self._picture(seen, point), refresh=True)

    def close(self, seen: Seen, point: EvalPoint | None) -> None:
        """Leave this picture where it is."""
        try:
            self._live.update(self._picture(seen, point), refresh=True)
        finally:
            self._live.stop()

    def _picture(self, seen: Seen, point: EvalPoint | None) -> RenderableType:
        width = width_on(self._console)
        parts: list[RenderableType] = [headline(self._title, ", ".join(_about(seen)), width)]
        if seen.total:
            parts.append(progress_bar(min(seen.frames / seen.total, 1.0), seen.seconds_left, width))
        parts += [Text(), fact_table(self._facts(seen, point), width)]
        if seen.workers:
            parts += [Text(), worker_table(seen.workers, width)]
        return framed(parts)

    def _facts(self, seen: Seen, point: EvalPoint | None) -> Iterator[tuple[str, Text]]:
        yield "frames", fact(_frames(seen), f"{seen.rate:,.0f} frames/s")
        course = f"length {number(seen.episode_length)}".ljust(13) + self._returns.bars(SPARK_COLUMNS)
        yield "return", fact(number(seen.episode_return), course)
        if point:
            yield "evaluation", fact(eval_line(point), f"at step {point.frames:,}, {point.episodes} episodes")
        yield "waiting", waiting_fact(seen.waiting, seen.seconds)
        if seen.trouble:
            yield "trouble", Text(", ".join(seen.trouble), style="yellow")
        if seen.error:
            yield "error", Text(seen.error, style="red")


class LineScreen:
    """A line per twentieth of the run or per minute, whichever comes first, one per evaluation, and one at the end.

    Args:
        console: where the lines go.
        title: what is watched.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._frames_at, self._seconds_at = 1.0, SECONDS_BETWEEN_LINES
        self._point: EvalPoint | None = None
        self._said = ""

    def show(self, seen: Seen, point: EvalPoint | None) -> None:
        """Print a line if one is due."""
        if point is not None and point is not self._point:
            self._point = point
            self._say(f"evaluation at step {point.frames:,}: {eval_line(point)}, {point.episodes} episodes")
        if (seen.total and seen.frames >= self._frames_at) or seen.seconds >= self._seconds_at:
            self._frames_at = seen.frames + max((seen.total or 0) // LINES_PER_RUN, 1)
            self._seconds_at = seen.seconds + SECONDS_BETWEEN_LINES
            self._say(seen_line(seen))

    def close(self, seen: Seen, point: EvalPoint | None) -> None:
        """Print the last line, unless it has been printed."""
        self.show(seen, point)
        if seen_line(seen) != self._said:
            self._say(seen_line(seen))

    def _say(self, line: str) -> None:
        self._said = line
        self._console.print(f"{self._title}: {line}", soft_wrap=True, markup=False, highlight=False, emoji=False)
        self._console.file.flush()


def seen_line(seen: Seen) -> str:
    """What is seen in one line."""
    parts = [f"{_frames(seen)} frames, {seen.rate:,.0f} frames/s, return {number(seen.episode_return)}", *_about(seen)]
    if not isnan(seen.waiting):
        parts.append(f"waiting {100 * seen.waiting:.0f} %")
    if seen.workers:
        parts.append(f"{max(worker.staleness for worker in seen.workers)} behind")
    parts += seen.trouble
    if isfinite(seen.seconds_left):
        parts.append(f"{duration(seen.seconds_left)} left")
    return ", ".join([*parts, *([seen.error] if seen.error else [])])


def _frames(seen: Seen) -> str:
    return f"{seen.frames:,}" + (f" of {seen.total:,}" if seen.total else "")


def _about(seen: Seen) -> list[str]:
    workers = [] if seen.alive is None else [f"{seen.alive} of {len(seen.workers)} workers"]
    return [*workers, f"version {seen.version}"]
