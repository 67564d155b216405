"""One picture per part: its curves, or the first column of each table as bars; others than ours in grey."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from page import Fact, Measured

OTHERS = ("TorchRL", "RLlib", "Stable-Baselines3", "by hand", "bare", "plain", "a write", "BCa", "Student", "student")
TICKS = (1_000, 10_000, 100_000)
OURS_COLOUR, OTHERS_COLOUR = "#2b6cb0", "#b8bec6"


def draw(part: Measured, file: Path) -> None:
    """Write the picture: curves where there are any, else bars; nothing where there are no tables."""
    if part.courses:
        figure = _curves(part.courses[0])
    elif part.tables:
        figure = _bars(part.tables)
    else:
        return
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _colour(name: str) -> str:
    return OTHERS_COLOUR if any(word in name for word in OTHERS) else OURS_COLOUR


def _bars(tables: list[Fact]) -> Figure:
    heights = [len(table["rows"]) + 1.4 for table in tables]
    figure, axes = plt.subplots(
        len(tables), 1, figsize=(8, 0.3 * sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for table, axis in zip(tables, axes[:, 0], strict=True):
        names, sizes = list(table["bars"]), [size or 0.0 for size in table["bars"].values()]
        bars = axis.barh(names, sizes, color=[_colour(name) for name in names], height=0.7)
        axis.bar_label(bars, [cells[0] for cells in table["rows"].values()], padding=4, fontsize=8)
        axis.set_title(f"{table['title']}: {table['columns'][0]}", fontsize=9, loc="left")
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.xaxis.set_visible(False)
        axis.tick_params(axis="y", length=0, labelsize=8)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    return figure


def _curves(course: Fact) -> Figure:
    """One below the other, on one scale, with a line at 0 s."""
    lines = course["lines"]
    figure, axes = plt.subplots(
        len(lines), 1, figsize=(8, 1.0 * len(lines) + 0.6), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for (name, points), axis in zip(lines.items(), axes[:, 0], strict=True):
        seconds, sizes = zip(*points, strict=True)
        axis.fill_between(seconds, sizes, step="mid", color=_colour(name))
        axis.axvline(0, color="#c53030", linewidth=1)
        axis.set_title(name, fontsize=9, loc="left", pad=2)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_yscale("symlog", linthresh=1000)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_yticks([0, *TICKS], ["0", *(f"{tick:,}" for tick in TICKS)])
    axes[-1, 0].set_xlabel("seconds", fontsize=8)
    figure.suptitle(f"{course['title']}: {course['unit']}", fontsize=9, x=0.01, ha="left")
    return figure
