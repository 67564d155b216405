"""What a run shows while it goes on, be it `swath train` or a collector that is watched.

```
 Seen, EvalPoint ──show, evaluated──▶ Display ──terminal──▶ PictureDisplay: redrawn in place
                                        └──pipe, log file─▶ LineDisplay: a line now and then
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from swath.report.line_display import LineDisplay
from swath.report.picture_display import PictureDisplay

if TYPE_CHECKING:
    from rich.console import Console

    from swath.report.eval_point import EvalPoint
    from swath.report.seen import Seen


@dataclass(frozen=True)
class Title:
    """What stays the same.

    Attributes:
        name: of what is shown: an env's id, a kind of collector.
        details: a few words each, such as "8 envs" or "seed 0".
        hint: the last line of a picture while nothing else is to be said there.
    """

    name: str
    details: tuple[str, ...] = ()
    hint: str = ""


class Display(Protocol):
    """Shows a run. Used by one thread at a time."""

    def show(self, seen: Seen) -> None:
        """Show where the run stands, if it is time to."""

    def evaluated(self, point: EvalPoint) -> None:
        """Show an evaluation."""

    def say(self, text: str) -> None:
        """Show a remark of one line, to stay."""

    def doing(self, text: str) -> None:
        """Show what goes on just now, for as long as it does; empty: the usual."""

    def close(self) -> None:
        """Leave what was shown last and give the terminal back; twice is fine."""


def create_display(console: Console, title: Title) -> Display:
    """A picture where there is a terminal that can redraw, with more than ASCII; else lines."""
    draws = console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
    return PictureDisplay(console, title) if draws else LineDisplay(console, title)
