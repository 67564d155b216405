"""One picture per part: the first column of each table as bars, others than ours in grey."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from page import Measured

OTHERS = ("TorchRL", "RLlib", "Stable-Baselines3", "by hand", "bare", "plain", "a write", "BCa", "Student", "student")
OURS_COLOUR, OTHERS_COLOUR = "#2b6cb0", "#b8bec6"


def draw(part: Measured, file: Path) -> None:
    """Write the picture; nothing where there are no tables."""
    tables = part.tables
    if not tables:
        return
    heights = [len(table["rows"]) + 1.4 for table in tables]
    figure, axes = plt.subplots(
        len(tables), 1, figsize=(8, 0.3 * sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for table, axis in zip(tables, axes[:, 0], strict=True):
        names, sizes = list(table["bars"]), [size or 0.0 for size in table["bars"].values()]
        colours = [OTHERS_COLOUR if any(word in name for word in OTHERS) else OURS_COLOUR for name in names]
        bars = axis.barh(names, sizes, color=colours, height=0.7)
        axis.bar_label(bars, [cells[0] for cells in table["rows"].values()], padding=4, fontsize=8)
        axis.set_title(f"{table['title']}: {table['columns'][0]}", fontsize=9, loc="left")
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.xaxis.set_visible(False)
        axis.tick_params(axis="y", length=0, labelsize=8)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.savefig(file, dpi=110)
    plt.close(figure)
