"""Numbers as people read them."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite, isnan

BARS = "▁▂▃▄▅▆▇█"


def number(value: float) -> str:
    """Four significant digits, thousands separated: `12,345`, `475.3`, `0.0123`, `1.2e-05`; `-` for NaN."""
    if isnan(value):
        return "-"
    if not isfinite(value) or value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """`0:21`, `12:05`, `1:02:03`; `-` if it is not known."""
    if not isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: list[float], width: int) -> str:
    """The course of the finite values in at most `width` bars, each the mean of its share, from lowest to highest."""
    finite = [value for value in values if isfinite(value)]
    count = min(len(finite), width)
    edges = [round(index * len(finite) / count) for index in range(count + 1)] if count else []
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means, default=0.0), max(means, default=0.0) - min(means, default=0.0)
    return "".join(BARS[int((mean - low) / span * (len(BARS) - 1)) if span else 0] for mean in means)
