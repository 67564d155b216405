"""Public names of collection."""

from __future__ import annotations

from swath.collectors.base import BaseCollector
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
    MultiProcessedWeightUpdater,
    RayWeightUpdater,
    RemoteModuleWeightUpdater,
    VanillaWeightUpdater,
    WeightUpdaterBase,
)

DataCollectorBase = BaseCollector
LocalWeightsUpdaterBase = RemoteWeightsUpdaterBase = WeightUpdaterBase

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
