"""Collectors, with the names that TorchRL has in its package of collectors; loaded at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swath.lazy import lazy

if TYPE_CHECKING:
    from swath.collectors.base import BaseCollector, DataCollectorBase
    from swath.collectors.collector import Collector
    from swath.collectors.multi import MultiAsyncCollector, MultiCollector, MultiSyncCollector
    from swath.collectors.ray_collector import RayCollector
    from swath.options import Restarts
    from swath.rollout.episodes.gae import GAE
    from swath.rollout.episodes.nstep import MultiStep
    from swath.rollout.episodes.reshape import split_trajectories
    from swath.rollout.policies.calling import ExplorationType
    from swath.rollout.policies.random import RandomPolicy
    from swath.weights.updaters import (
        LocalWeightsUpdaterBase,
        MultiProcessedWeightUpdater,
        RayWeightUpdater,
        RemoteModuleWeightUpdater,
        RemoteWeightsUpdaterBase,
        VanillaWeightUpdater,
        WeightUpdaterBase,
    )

__all__ = [
    "GAE",
    "BaseCollector",
    "Collector",
    "DataCollectorBase",
    "ExplorationType",
    "LocalWeightsUpdaterBase",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiProcessedWeightUpdater",
    "MultiStep",
    "MultiSyncCollector",
    "RandomPolicy",
    "RayCollector",
    "RayWeightUpdater",
    "RemoteModuleWeightUpdater",
    "RemoteWeightsUpdaterBase",
    "Restarts",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
    "split_trajectories",
]

if not TYPE_CHECKING:  # a type checker must see which names there are not
    __getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "swath"))
