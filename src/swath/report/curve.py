"""The learning curve as a picture: training return, and the evaluations with their 95 % interval."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import numpy as np

from swath.extras import need
from swath.report.atomic import replacing
from swath.report.services import FRAMES
from swath.report.sinks import read_rows

if TYPE_CHECKING:
    from pathlib import Path

TRAINING_COLOUR, EVALUATION_COLOUR, INK, GRID = "#9aa5b1", "#0b6e4f", "#333b44", "#e3e7eb"


def draw_curve(path: str | Path, metrics: str | Path, training: str, evaluation: str, title: str) -> None:
    """Draw the returns of a run over its frames as a PNG file.

    Args:
        path: the picture.
        metrics: the file that a `CsvSink` wrote.
        training: column of the training return.
        evaluation: column of the evaluation's mean; its interval is in those with `_ci_low` and `_ci_high` added.
        title: of the picture.

    Raises:
        ImportError: matplotlib is not installed; the message names the extra.
    """
    need("matplotlib", extra="plot", why="to draw the learning curve")
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra, and slow to import

    names = [FRAMES, training, evaluation, f"{evaluation}_ci_low", f"{evaluation}_ci_high"]
    cells = [[float(row.get(name) or nan) for name in names] for row in read_rows(metrics)[1]]
    table = np.array(cells).reshape(-1, len(names)).T
    trained, judged = (table[:, np.isfinite(table[row])] for row in (1, 2))
    figure = Figure(figsize=(8.0, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    if trained.size:
        axes.plot(*trained[:2], color=TRAINING_COLOUR, linewidth=1.4, label="training, last 100 episodes", zorder=2)
    if judged.size:
        frames, _, means, low, high = judged
        axes.plot(
            frames, means, "o-", color=EVALUATION_COLOUR, linewidth=2, markersize=4.5, label="evaluation", zorder=3
        )
        axes.fill_between(frames, low, high, color=EVALUATION_COLOUR, alpha=0.18, linewidth=0, label="95 % interval")
        axes.vlines(frames, low, high, color=EVALUATION_COLOUR, alpha=0.35, linewidth=1)
    axes.set_title(title, loc="left", color=INK, fontsize=12, weight="bold", pad=12)
    axes.set_xlabel("frames", color=INK)
    axes.set_ylabel("return per episode", color=INK)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(TRAINING_COLOUR)
    axes.tick_params(colors=INK, length=0)
    if trained.size or judged.size:
        axes.legend(frameon=False, labelcolor=INK, loc="best")
    with replacing(path) as draft:
        figure.savefig(draft, format="png")
