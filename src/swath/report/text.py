"""Numbers as people read them."""

from __future__ import annotations

from math import isfinite, isnan


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
