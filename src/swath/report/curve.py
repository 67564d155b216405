"""The learning curve as a picture: training return, and the evaluations with their 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from swath.extras import need
from swath.report.atomic import replacing
from swath.report.csv_sink import FRAMES, read_rows
from swath.report.text import number

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

TRAINING_COLOUR, EVALUATION_COLOUR, INK, GRID = "#9aa5b1", "#0b6e4f", "#333b44", "#e3e7eb"
SIZE_INCHES, DOTS_PER_INCH = (8.0, 4.5), 150


@dataclass(frozen=True)
class Curve:
    """A run's returns over its frames.

    Attributes:
        training: frames and mean returns of the training episodes, `[2, N]`.
        evaluation: frames, means, lower and upper ends of the 95 % interval (NaN: none), `[4, M]`.
    """

    training: Floats
    evaluation: Floats


def read_curve(path: str | Path, training: str, evaluation: str) -> Curve:
    """The curve that a run's metrics file holds.

    Args:
        path: the file a `CsvSink` wrote.
        training: column of the training return.
        evaluation: column of the evaluation's mean; its interval stands in those with `_ci_low` and `_ci_high` added.
    """
    _, rows = read_rows(path)
    names = [FRAMES, training, evaluation, f"{evaluation}_ci_low", f"{evaluation}_ci_high"]
    table = np.array([[float(row.get(name) or nan) for name in names] for row in rows]).reshape(-1, len(names)).T
    return Curve(_where_measured(table[[0, 1]]), _where_measured(table[[0, 2, 3, 4]]))


def draw_curve(path: str | Path, curve: Curve, title: str) -> None:
    """Draw the curve as a PNG file.

    Raises:
        ImportError: matplotlib is not installed; the message names the extra.
    """
    need("matplotlib", extra="plot", why="to draw the learning curve")
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra, and slow to import

    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    _draw_training(axes, curve.training)
    _draw_evaluation(axes, curve.evaluation)
    _dress(axes, title)
    with replacing(path) as draft:
        figure.savefig(draft, format="png")


def _where_measured(columns: Floats) -> Floats:
    return columns[:, np.isfinite(columns[1])]


def _draw_training(axes: Any, points: Floats) -> None:
    if points.size:
        axes.plot(*points, color=TRAINING_COLOUR, linewidth=1.4, label="training, last 100 episodes", zorder=2)


def _draw_evaluation(axes: Any, points: Floats) -> None:
    if not points.size:
        return
    frames, means, low, high = points
    axes.plot(frames, means, "o-", color=EVALUATION_COLOUR, linewidth=2, markersize=4.5, label="evaluation", zorder=3)
    axes.fill_between(frames, low, high, color=EVALUATION_COLOUR, alpha=0.18, linewidth=0, label="95 % interval")
    axes.vlines(frames, low, high, color=EVALUATION_COLOUR, alpha=0.35, linewidth=1)
    offset = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    axes.annotate(number(means[-1]), (frames[-1], means[-1]), color=EVALUATION_COLOUR, weight="bold", **offset)


def _dress(axes: Any, title: str) -> None:
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
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=INK, loc="best")
