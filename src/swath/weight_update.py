"""Weight sync schemes, under the name that TorchRL has for their package."""

# ruff: noqa: PLC0414  names that are handed on, as type checkers want them

from swath.weights.schemes import MultiProcessedWeightSyncScheme as MultiProcessedWeightSyncScheme
from swath.weights.schemes import MultiProcessWeightSyncScheme as MultiProcessWeightSyncScheme
from swath.weights.schemes import NoWeightSyncScheme as NoWeightSyncScheme
from swath.weights.schemes import RayWeightSyncScheme as RayWeightSyncScheme
from swath.weights.schemes import SharedMemWeightSyncScheme as SharedMemWeightSyncScheme
from swath.weights.schemes import WeightStrategy as WeightStrategy
from swath.weights.schemes import WeightSyncScheme as WeightSyncScheme
