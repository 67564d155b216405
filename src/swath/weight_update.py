"""Weight sync schemes, under the name that TorchRL has for their package."""

from swath.weights.schemes import (
    MultiProcessedWeightSyncScheme,
    MultiProcessWeightSyncScheme,
    NoWeightSyncScheme,
    RayWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WeightSyncScheme,
)
from swath.weights.strategy import WeightStrategy

__all__ = [
    "MultiProcessWeightSyncScheme",
    "MultiProcessedWeightSyncScheme",
    "NoWeightSyncScheme",
    "RayWeightSyncScheme",
    "SharedMemWeightSyncScheme",
    "WeightStrategy",
    "WeightSyncScheme",
]
