"""The stopwatch that hosts, policy and sampler of a worker share."""

from __future__ import annotations

from swath.rollout_workers.perf_stats import Part, PerfStats


class Laps:
    """Counts what a step's time goes to, if the step is timed.

    Args:
        perf: keeps the sums.
    """

    def __init__(self, perf: PerfStats) -> None:
        self.perf = perf
        self._timed = False

    def step(self) -> None:
        """Begin a step."""
        self._timed = self.perf.step()

    def lap(self, part: Part) -> None:
        """Count the time up to now as spent on this part."""
        if self._timed:
            self.perf.lap(part)
