"""The parts that pictures of a run are made of: headline, progress bar, facts, workers."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swath.report.text import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType

    from swath.report.seen import WorkerSeen

MOST_COLUMNS = 78
SPARK_COLUMNS = 20
LABEL_COLUMNS = 12
VALUE_COLUMNS = 24
MOST_WORKERS, FEWEST_WORKERS = 12, 3
"""So many are shown at most, also in a high terminal, and at least, also in a low one. Those that have trouble come
first, the others are counted in one line."""

OTHER_LINES = 11
"""How many there are at most beside facts and workers, with one to spare for what is printed."""

COLUMNS = {"worker": 6, "state": 11, "life": 5, "frames": 12, "frames/s": 10, "version": 9, "behind": 8}


def width_on(console: Console) -> int:
    """How wide a picture is there."""
    return min(MOST_COLUMNS, console.width - 2)


def framed(parts: Iterable[RenderableType], foot: str = "") -> RenderableType:
    """A whole picture, with room around it."""
    below: list[RenderableType] = [Text(), Text(foot, style="dim")] if foot else []
    return Padding(Group(*parts, *below), (1, 1), expand=False)


def headline(title: str, about: str, width: int) -> RenderableType:
    """What the picture is of, and a few words on the right."""
    line = _grid(width)
    line.add_column(justify="right", style="dim")
    line.add_row(Text(title, style="bold"), Text(about))
    return line


def progress_bar(share: float, seconds_left: float, width: int) -> RenderableType:
    """A bar, and the same in words."""
    line = _grid(width)
    line.add_column(justify="right", width=20)
    bar = ProgressBar(1.0, share, complete_style="green", finished_style="green", style="bright_black")
    line.add_row(bar, progress_words(share, seconds_left))
    return line


def progress_words(share: float, seconds_left: float) -> str:
    """How far the run is: `66 %, 0:07 left`, `0 %` while nothing is known, `done`."""
    if share == 1:
        return "done"
    return f"{100 * share:.0f} %" + (f", {duration(seconds_left)} left" if isfinite(seconds_left) else "")


def fact_table(rows: Iterable[tuple[str, RenderableType]], width: int) -> RenderableType:
    """Facts, one below the other, each behind its label."""
    facts = Table.grid()
    facts.width = width
    facts.add_column(style="dim", width=LABEL_COLUMNS)
    facts.add_column(ratio=1)
    for label, fact in rows:
        facts.add_row(label, fact)
    return facts


def fact(value: str, about: str) -> Text:
    """A value in bold and what is said about it, the second words one below the other; cut in a narrow terminal."""
    return Text.assemble((f"{value:<{VALUE_COLUMNS - 1}} ", "bold"), (about, "dim"), no_wrap=True, overflow="ellipsis")


def waiting_fact(waiting: float, seconds: float) -> Text:
    """For which part of the time the learner waited for a batch."""
    share = "-" if isnan(waiting) else f"{100 * waiting:.0f} %"
    return fact(share, f"of {duration(seconds)}, for a batch")


def room_on(console: Console, facts: int) -> int:
    """For how many workers there is a line below so many facts."""
    return min(max(console.height - OTHER_LINES - facts, FEWEST_WORKERS), MOST_WORKERS)


def worker_table(workers: Sequence[WorkerSeen], width: int, most: int) -> RenderableType:
    """A line for each worker, but for no more than so many, the others counted."""
    shown = sorted(sorted(workers, key=_is_well)[:most], key=lambda one: one.worker)
    table = Table.grid()
    table.width = min(width, sum(COLUMNS.values()))
    for name, columns in COLUMNS.items():
        table.add_column(justify="left" if name in ("worker", "state") else "right", width=columns, no_wrap=True)
    table.add_row(*(Text(name, style="dim") for name in ("", *list(COLUMNS)[1:])))
    for one in shown:
        cells = [f"{one.life:,}", f"{one.frames:,}", f"{one.rate:,.0f}", f"{one.version:,}", f"{one.staleness:,}"]
        state = Text(one.state, style="green" if _is_well(one) else "yellow")
        table.add_row(Text(f"{one.worker:>3}", style="dim"), state, *cells)
    more = len(workers) - len(shown)
    return Group(table, Text(f"and {more:,} more", style="dim")) if more else table


def _is_well(worker: WorkerSeen) -> bool:
    return worker.state in ("up", "closed")


def _grid(width: int) -> Table:
    line = Table.grid(padding=(0, 2))
    line.width = width
    line.add_column(ratio=1)
    return line
