"""How long a worker's steps take, by what the time goes to: measured on every 64th step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, get_args

Part = Literal["raw_obs_processing", "inference", "action_processing", "env_wait", "env_render"]
"""What time goes to."""

EVERY = 64


class PerfStats:
    """A stopwatch for steps.

    `step` begins one, every 64th of which is timed: then `lap` counts what passed since the step or the last lap.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._steps = self._timed = 0
        self._since = 0.0
        self._measures = False
        self._seconds: dict[Part, float] = {}

    def step(self) -> None:
        """Begin a step; the first and every 64th are timed."""
        self._measures = self._steps % EVERY == 0
        self._steps += 1
        if self._measures:
            self._timed += 1
            self._since = self._clock()

    def lap(self, part: Part) -> None:
        """Count the time up to now as spent on this part, if the step is timed."""
        if not self._measures:
            return
        now = self._clock()
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._since
        self._since = now

    def get(self) -> dict[str, float]:
        """Mean milliseconds per step by part, `mean_…_ms`; 0 for one that never was; empty before the first step."""
        if not self._timed:
            return {}
        return {f"mean_{part}_ms": self._seconds.get(part, 0.0) * 1e3 / self._timed for part in get_args(Part)}
