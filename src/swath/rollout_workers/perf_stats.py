"""How long a worker's steps take, by what the time goes to: measured on every 64th step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal, get_args

Part = Literal["raw_obs_processing", "inference", "action_processing", "env_wait", "env_render"]
"""What time goes to."""

EVERY = 64


class PerfStats:
    """A stopwatch for steps.

    `step` begins one and says whether it is timed; if so, `lap` counts what passed since then, or since the last lap.

    Args:
        ema_coef: give moving averages, with this weight of what is new; None gives means of all timed steps.
        clock: gives seconds.
    """

    def __init__(self, ema_coef: float | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._ema_coef = ema_coef
        self._clock = clock
        self._steps = self._timed = 0
        self._since = 0.0
        self._seconds: dict[Part, float] = {}

    def step(self) -> bool:
        """Begin a step; the first and every 64th are timed."""
        timed = self._steps % EVERY == 0
        self._steps += 1
        if timed:
            self._timed += 1
            self._since = self._clock()
        return timed

    def lap(self, part: Part) -> None:
        """Count the time up to now as spent on this part."""
        now = self._clock()
        passed, self._since = now - self._since, now
        if self._ema_coef is None:
            self._seconds[part] = self._seconds.get(part, 0.0) + passed
        else:
            before = self._seconds.get(part, passed)
            self._seconds[part] = before + self._ema_coef * (passed - before)

    def get(self) -> dict[str, float]:
        """Milliseconds per step by part, `mean_…_ms`; 0 for one that never was; empty before the first step."""
        if not self._timed:
            return {}
        scale = 1e3 if self._ema_coef is not None else 1e3 / self._timed
        return {f"mean_{part}_ms": self._seconds.get(part, 0.0) * scale for part in get_args(Part)}


def connector_metrics(stats: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Milliseconds per step on the way to policies and from them to envs, of what `PerfStats.get` gives."""
    return {
        "agent_connectors": {"raw_obs_processing_ms": stats.get("mean_raw_obs_processing_ms", 0.0)},
        "action_connectors": {"action_processing_ms": stats.get("mean_action_processing_ms", 0.0)},
    }
