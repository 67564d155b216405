"""An evaluation as a table, beside the one that is stored where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from swath.report.text import number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Line = Callable[[Mapping[str, float]], str]


def _one(name: str) -> Line:
    return lambda result: number(result[f"eval/{name}"])


def _two(low: str, between: str, high: str) -> Line:
    return lambda result: f"{_one(low)(result)}{between}{_one(high)(result)}"


LINES: dict[str, Line] = {
    "mean return": _one("reward"),
    "95 % interval": _two("reward_ci_low", " to ", "reward_ci_high"),
    "standard deviation": _one("reward_std"),
    "lowest, highest": _two("reward_min", ", ", "reward_max"),
    "median": _one("reward_median"),
    "interquartile mean": _one("reward_iqm"),
    "episode length": _one("episode_length"),
    "episodes": _one("num_episodes"),
}


def eval_table(results: Mapping[str, Mapping[str, float]]) -> Table:
    """One column per evaluation, under its name."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("evaluation")
    for name in results:
        table.add_column(name, justify="right", style="bold" if name == next(iter(results)) else "dim")
    for label, line in LINES.items():
        table.add_row(label, *map(line, results.values()))
    return table
