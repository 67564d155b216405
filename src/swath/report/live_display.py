"""The picture in a terminal: progress, return, evaluation, losses; redrawn in place with every status.

```
 CartPole-v1                                        PPO, 8 envs, seed 0, cpu
 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━  66 %, 0:07 left

 frames      65,536 of 100,000       4,812 frames/s
 return      312.4                   length 312   ▁▁▁▂▂▃▃▄▅▅▆▇▇█
 evaluation  475.3 [451.2, 498]      at 61,440 frames, 20 episodes
 losses      policy -0.012  value 12.3  entropy 0.551

 Ctrl-C stops after this batch and keeps everything
```
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swath.report.display import PlainDisplay, eval_line
from swath.report.status import Status
from swath.report.text import duration, number, sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from swath.report.display import Display
    from swath.report.status import EvalPoint, RunTitle

MOST_COLUMNS = 78
SPARK_COLUMNS = 20
LABEL_COLUMNS = 12
VALUE_COLUMNS = 24
GLUE = "\N{NO-BREAK SPACE}"
HINT = "Ctrl-C stops after this batch and keeps everything"


def create_display(console: Console, title: RunTitle) -> Display:
    """A picture where there is a terminal that can show it, else plain lines."""
    if console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only:
        return LiveDisplay(console, title)
    return PlainDisplay(console, title)


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
        self._returns: list[float] = []
        self._live = Live(self._picture(HINT), console=console, auto_refresh=False)
        self._live.start(refresh=True)

    def update(self, status: Status) -> None:
        """Redraw with this status."""
        self._status = status
        self._returns.append(status.episode_return)
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
        width = min(MOST_COLUMNS, self._console.width - 2)
        parts: list[RenderableType] = [self._headline(width), self._progress(width), Text(), self._facts(width)]
        if foot:
            parts += [Text(), Text(foot, style="dim")]
        return Padding(Group(*parts), (1, 1), expand=False)

    def _headline(self, width: int) -> RenderableType:
        line = _grid(width)
        line.add_column(justify="right", style="dim")
        line.add_row(Text(self._title.env, style="bold"), Text(", ".join(self._title.details)))
        return line

    def _progress(self, width: int) -> RenderableType:
        share = min(self._status.frames / self._title.total_frames, 1.0)
        line = _grid(width)
        line.add_column(justify="right", width=20)
        bar = ProgressBar(1.0, share, complete_style="green", finished_style="green", style="bright_black")
        line.add_row(bar, progress_words(share, self._status.seconds_left))
        return line

    def _facts(self, width: int) -> RenderableType:
        now, point = self._status, self._point
        spark = sparkline(self._returns, SPARK_COLUMNS)
        facts = Table.grid()
        facts.width = width
        facts.add_column(style="dim", width=LABEL_COLUMNS)
        facts.add_column(ratio=1)
        frames = f"{now.frames:,} of {self._title.total_frames:,}"
        facts.add_row("frames", _fact(frames, f"{now.frames_per_second:,.0f} frames/s"))
        facts.add_row(
            "return", _fact(number(now.episode_return), f"length {number(now.episode_length)}".ljust(13) + spark)
        )
        if point:
            about = f"at {point.frames:,} frames, {point.episodes} episodes"
            facts.add_row("evaluation", _fact(eval_line(point), about))
        if now.losses:
            facts.add_row(
                "losses", Text("  ".join(f"{name}{GLUE}{number(value)}" for name, value in now.losses.items()))
            )
        return facts


def progress_words(share: float, seconds_left: float) -> str:
    """How far the run is: `66 %, 0:07 left`, `0 %` while nothing is known, `done`."""
    if share == 1:
        return "done"
    return f"{100 * share:.0f} %" + (f", {duration(seconds_left)} left" if isfinite(seconds_left) else "")


def _grid(width: int) -> Table:
    line = Table.grid(padding=(0, 2))
    line.width = width
    line.add_column(ratio=1)
    return line


def _fact(value: str, about: str) -> Text:
    """A value in bold and what is said about it, the second words one below the other; cut in a narrow terminal."""
    return Text.assemble((f"{value:<{VALUE_COLUMNS - 1}} ", "bold"), (about, "dim"), no_wrap=True, overflow="ellipsis")
