"""Settings that change with the steps sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def scheduled(schedule: Sequence[Sequence[float]] | None, constant: float, step: int) -> float:
    """The value at a step, on straight lines between the `[step, value]` of a schedule, the last one beyond its end.

    Args:
        schedule: with growing steps; None: `constant` always.
        constant: likewise.
        step: the global one.
    """
    if schedule is None:
        return constant
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(step, steps, values))
