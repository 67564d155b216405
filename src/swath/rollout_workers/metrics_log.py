"""What a worker has to tell of its episodes until somebody asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from swath.errors import warn
from swath.rollout_workers.rollout_metrics import RolloutMetrics

CAPACITY = 10_000


class MetricsLog:
    """Keeps the latest metrics; older ones than it has room for are dropped, counted, and warned of once.

    Attributes:
        dropped: how many were dropped.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.dropped = 0
        self._kept: deque[RolloutMetrics] = deque(maxlen=capacity)

    def add(self, metrics: Iterable[RolloutMetrics]) -> None:
        """Note episodes, in the order in which they ended."""
        before = len(self._kept)
        added = list(metrics)
        self._kept.extend(added)
        lost = before + len(added) - len(self._kept)
        if lost and not self.dropped:
            warn(
                f"the metrics of {len(self._kept)} episodes were not asked for; older ones are dropped from now on: "
                "call get_metrics() now and then"
            )
        self.dropped += lost

    def drain(self) -> list[RolloutMetrics]:
        """All that is kept, which is forgotten here."""
        told = list(self._kept)
        self._kept.clear()
        return told
