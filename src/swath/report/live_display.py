"""The picture in a terminal: progress, return, evaluation, losses, workers; redrawn in place with every status.

```
 CartPole-v1                                        PPO, 8 envs, seed 0, cpu
 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━  66 %, 0:07 left

 frames      65,536 of 100,000       4,812 frames/s
 return      312.4                   length 312   ▁▁▁▂▂▃▃▄▅▅▆▇▇█
 evaluation  475.3 [451.2, 498]      at 61,440 frames, 20 episodes
 losses      policy -0.012  value 12.3  entropy 0.551
 waiting     38 %                    of 0:14, for a batch

       state       life      frames  frames/s  version  behind
   0   up             0      32,768     2,406       31       0
   1   up             1      32,768     2,406       31       0

 Ctrl-C stops after this batch and keeps everything
```
"""

from __future__ import annotations

from math import inf, isnan
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from swath.report.course import Course
from swath.report.display import PlainDisplay, eval_line
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
from swath.report.status import Status
from swath.report.text import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from swath.report.display import Display
    from swath.report.status import EvalPoint, RunTitle

GLUE = "\N{NO-BREAK SPACE}"
HINT = "Ctrl-C stops after this batch and keeps everything"


def create_display(console: Console, title: RunTitle) -> Display:
    """A picture where there is a terminal that can show it, else plain lines."""
    if shows_pictures(console):
        return LiveDisplay(console, title)
    return PlainDisplay(console, title)


def shows_pictures(console: Console) -> bool:
    """Whether it is a terminal that can redraw, with more than ASCII."""
    return console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only


class LiveDisplay:
    """Draws the run in place.

    Args:
        console: the terminal.
        title: what stays the same.
    """

    def __init__(self, console: Console, title: RunTitle) -> None:
        self._console, self._title = console, title
        self._status = Status(frames=0, frames_per_second=0.0, seconds_left=inf)
        self._point: EvalPoint | None = None
        self._returns = Course()
        self._live = Live(self._picture(HINT), console=console, auto_refresh=False)
        self._live.start(refresh=True)

    def update(self, status: Status) -> None:
        """Redraw with this status."""
        self._status = status
        self._returns.add(status.episode_return)
        self._draw(HINT)

    def evaluated(self, point: EvalPoint) -> None:
        """Redraw with this evaluation."""
        self._point = point
        self._draw(HINT)

    def say(self, text: str) -> None:
        """Print the line above the picture."""
        self._console.print(text, markup=False, highlight=False, emoji=False)

    def doing(self, text: str) -> None:
        """Redraw with this text in the last line."""
        self._draw(text or HINT)

    def close(self) -> None:
        """Leave the last picture without its last line."""
        if self._live.is_started:
            self._draw("")
            self._live.stop()

    def _draw(self, foot: str) -> None:
        self._live.update(self._picture(foot), refresh=True)

    def _picture(self, foot: str) -> RenderableType:
        width, now, total = width_on(self._console), self._status, self._title.total_frames
        parts: list[RenderableType] = [
            headline(self._title.env, ", ".join(self._title.details), width),
            progress_bar(min(now.frames / total, 1.0), now.seconds_left, width),
            Text(),
            fact_table(self._facts(), width),
        ]
        if now.seen.workers:
            parts += [Text(), worker_table(now.seen.workers, width)]
        return framed(parts, foot)

    def _facts(self) -> Iterator[tuple[str, Text]]:
        now, point = self._status, self._point
        frames = f"{now.frames:,} of {self._title.total_frames:,}"
        yield "frames", fact(frames, f"{now.frames_per_second:,.0f} frames/s")
        length = f"length {number(now.episode_length)}".ljust(13)
        yield "return", fact(number(now.episode_return), length + self._returns.bars(SPARK_COLUMNS))
        if point:
            yield "evaluation", fact(eval_line(point), f"at {point.frames:,} frames, {point.episodes} episodes")
        if now.losses:
            yield "losses", Text("  ".join(f"{name}{GLUE}{number(value)}" for name, value in now.losses.items()))
        if now.seen.workers and not isnan(now.seen.waiting):
            yield "waiting", waiting_fact(now.seen.waiting, now.seen.seconds)
        if now.seen.trouble:
            yield "trouble", Text(", ".join(now.seen.trouble), style="yellow")
