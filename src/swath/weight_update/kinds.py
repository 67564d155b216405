"""The schemes by the names that users know them by. They differ in how long `send` waits, and whether it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from swath.errors import warn_of_no_effect
from swath.weight_update.scheme import WeightSyncScheme
from swath.weight_update.strategy import Form


class RayWeightSyncScheme(WeightSyncScheme):
    """Serves one model.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights.
        backend: has no effect: there are no process groups.
    """

    def __init__(self, strategy: Form = "tensordict", backend: str = "gloo") -> None:
        super().__init__(strategy)
        if backend != "gloo":
            warn_of_no_effect(f"backend={backend!r}", "weights travel by Ray's object store")


class MultiProcessWeightSyncScheme(WeightSyncScheme):
    """Serves one model; `send` waits for the workers unless `sync=False`.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights.
        sync: whether `send` waits until the collector's workers run the weights.
    """

    def __init__(self, strategy: Form = "tensordict", sync: bool = True) -> None:
        super().__init__(strategy)
        self.sync = sync


MultiProcessedWeightSyncScheme = MultiProcessWeightSyncScheme


class SharedMemWeightSyncScheme(WeightSyncScheme):
    """Serves one model; `send` waits for the workers unless `sync=False`.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights.
        sync: whether `send` waits until the collector's workers run the weights.
        per_worker_weights: both values allow `{worker: weights}`.
    """

    def __init__(self, strategy: Form = "tensordict", sync: bool = True, per_worker_weights: bool = False) -> None:
        super().__init__(strategy)
        self.sync = sync
        self.per_worker_weights = per_worker_weights


class NoWeightSyncScheme(WeightSyncScheme):
    """Serves one model with nothing: updates of it publish nothing, and the version stays.

    Args:
        strategy: `"tensordict"` or `"state_dict"`.
    """

    sends: ClassVar[bool] = False


BACKENDS: Mapping[str, type[WeightSyncScheme]] = {
    "none": NoWeightSyncScheme,
    "direct": NoWeightSyncScheme,
    "shared": SharedMemWeightSyncScheme,
    "thread": SharedMemWeightSyncScheme,
    "process": MultiProcessWeightSyncScheme,
    "multiprocessing": MultiProcessWeightSyncScheme,
    "ray": RayWeightSyncScheme,
}
"""Schemes by the place where workers live."""
