"""The picture in a terminal: progress, return, evaluation, losses, workers; redrawn in place.

```
 CartPole-v1                        PPO, 2 process workers of 4 envs, seed 0, cpu
 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━  66 %, 0:07 left

 frames      65,536 of 100,000       4,812 frames/s
 return      312.4                   length 312   ▁▁▁▂▂▃▃▄▅▅▆▇▇█
 evaluation  475.3 [451.2, 498]      at step 61,440, 20 episodes
 losses      policy -0.012  value 12.3  entropy 0.551
 waiting     38 %                    of 0:14, for a batch
 weights     version 31, 0 behind    2 of 2 workers

       state       life      frames  frames/s  version  behind
   0   up             0      32,768     2,406       31       0
   1   up             1      32,768     2,406       31       0

 Ctrl-C stops after this batch and keeps everything
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from swath.report.course import Course
from swath.report.picture import (
    SPARK_COLUMNS,
    fact,
    fact_table,
    framed,
    headline,
    progress_bar,
    room_on,
    waiting_fact,
    width_on,
    worker_table,
)
from swath.report.seen import Seen
from swath.report.text import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from swath.report.display import Title
    from swath.report.eval_point import EvalPoint

GLUE = "\N{NO-BREAK SPACE}"


class PictureDisplay:
    """Draws the run in place; what is printed meanwhile appears above it.

    Args:
        console: the terminal.
        title: stands at the top.
    """

    def __init__(self, console: Console, title: Title) -> None:
        self._console, self._title = console, title
        self._seen = Seen()
        self._point: EvalPoint | None = None
        self._returns = Course()
        self._live = Live(self._picture(title.hint), console=console, auto_refresh=False)
        self._live.start(refresh=True)

    def show(self, seen: Seen) -> None:
        """Redraw."""
        self._seen = seen
        self._returns.add(seen.episode_return)
        self._draw(self._title.hint)

    def evaluated(self, point: EvalPoint) -> None:
        """Redraw with this evaluation."""
        self._point = point
        self._draw(self._title.hint)

    def say(self, text: str) -> None:
        """Print the line above the picture."""
        self._console.print(text, markup=False, highlight=False, emoji=False)

    def doing(self, text: str) -> None:
        """Redraw with this text in the last line."""
        self._draw(text or self._title.hint)

    def close(self) -> None:
        """Leave the picture without its last line."""
        if not self._live.is_started:
            return
        try:
            self._draw("")
        finally:
            self._live.stop()

    def _draw(self, foot: str) -> None:
        self._live.update(self._picture(foot), refresh=True)

    def _picture(self, foot: str) -> RenderableType:
        width, seen = width_on(self._console), self._seen
        parts: list[RenderableType] = [headline(self._title.name, ", ".join(self._title.details), width)]
        if seen.share is not None:
            parts.append(progress_bar(seen.share, seen.seconds_left, width))
        facts = [*self._facts(seen)]
        parts += [Text(), fact_table(facts, width)]
        if seen.workers:
            parts += [Text(), worker_table(seen.workers, width, room_on(self._console, len(facts)))]
        return framed(parts, foot)

    def _facts(self, seen: Seen) -> Iterator[tuple[str, Text]]:
        yield "frames", fact(seen.progress, f"{seen.rate:,.0f} frames/s")
        length = f"length {number(seen.episode_length)}".ljust(13)
        yield "return", fact(number(seen.episode_return), length + self._returns.bars(SPARK_COLUMNS))
        if self._point is not None:
            yield "evaluation", fact(self._point.value, self._point.about)
        if seen.losses:
            yield "losses", Text("  ".join(f"{name}{GLUE}{number(value)}" for name, value in seen.losses.items()))
        yield "waiting", waiting_fact(seen.waiting, seen.seconds)
        behind = f", {seen.staleness:,} behind" if seen.workers_up else ""
        yield "weights", fact(f"version {seen.version:,}{behind}", seen.workers_up)
        if seen.trouble:
            yield "trouble", Text(", ".join(seen.trouble), style="yellow")
        if seen.error:
            yield "error", Text(seen.error, style="red")
