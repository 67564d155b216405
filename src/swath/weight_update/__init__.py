"""Weight sync schemes: one model's weights, from a sender to its readers."""

from __future__ import annotations

from swath.weight_update.kinds import (
    MultiProcessedWeightSyncScheme,
    MultiProcessWeightSyncScheme,
    NoWeightSyncScheme,
    RayWeightSyncScheme,
    SharedMemWeightSyncScheme,
)
from swath.weight_update.scheme import WeightSyncScheme
from swath.weight_update.strategy import WeightStrategy

__all__ = [
    "MultiProcessWeightSyncScheme",
    "MultiProcessedWeightSyncScheme",
    "NoWeightSyncScheme",
    "RayWeightSyncScheme",
    "SharedMemWeightSyncScheme",
    "WeightStrategy",
    "WeightSyncScheme",
]
