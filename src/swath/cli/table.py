"""Evaluations as tables: one, beside another, and the difference between two."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from swath.report.text import number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from swath.evaluation.statistics import Floats
    from swath.evaluators import Comparison

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


def comparison_table(comparison: Comparison, gains: Floats) -> Table:
    """How much better B is than A, episode by episode.

    Args:
        comparison: of B with A.
        gains: return of B minus return of A, one per episode.
    """
    better, worse = int(np.sum(gains > 0)), int(np.sum(gains < 0))
    lines = {
        "mean difference in return": _signed(comparison.difference),
        "95 % interval": f"{_signed(comparison.ci_low)} to {_signed(comparison.ci_high)}",
        "episodes where B is better": f"{better} of {len(gains)}",
        "where both are equal": f"{len(gains) - better - worse} of {len(gains)}",
        "where A is better": f"{worse} of {len(gains)}",
    }
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("B minus A, episode by episode")
    table.add_column("", justify="right")
    for row in lines.items():
        table.add_row(*row)
    return table


def verdict(comparison: Comparison) -> str:
    """What the interval of the difference says, in a sentence."""
    low, high = comparison.ci_low, comparison.ci_high
    if isnan(low) or isnan(high):
        return "Nothing can be said: there is no interval of returns that are not finite."
    if low == high == 0:
        return "A and B have the same return in every episode."
    if low > 0:
        return "B is better than A: the whole interval is above 0."
    if high < 0:
        return "A is better than B: the whole interval is below 0."
    return f"Neither is shown to be better: the interval holds 0; --episodes {5 * comparison.n} narrows it."


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)
