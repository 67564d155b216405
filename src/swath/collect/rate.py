"""How many frames per second whatever makes batches makes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import inf

from tensordict import TensorDictBase

from swath.collect.shaping import valid_frames


def frames_per_second(batches: Iterator[TensorDictBase], seconds: float, frames: float = inf) -> float:
    """The rate of the batches that are drawn, at least one, after a first that is not counted: it builds and warms up.

    Args:
        batches: without an end.
        seconds: after which no further batch is drawn.
        frames: after which none is, either.
    """
    next(batches)
    drawn, spent, began = 0, 0.0, time.perf_counter()
    while not drawn or (drawn < frames and spent < seconds):
        drawn += valid_frames(next(batches))
        spent = time.perf_counter() - began
    return drawn / spent
