"""Collectors, with the names that TorchRL has in its package of collectors; loaded at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swath.lazy import lazy

if TYPE_CHECKING:
    from swath.collectors.base import BaseCollector as BaseCollector
    from swath.collectors.base import DataCollectorBase as DataCollectorBase
    from swath.collectors.collector import Collector as Collector
    from swath.collectors.multi import AsyncCollector as AsyncCollector
    from swath.collectors.multi import MultiAsyncCollector as MultiAsyncCollector
    from swath.collectors.multi import MultiCollector as MultiCollector
    from swath.collectors.multi import MultiSyncCollector as MultiSyncCollector
    from swath.collectors.ray_collector import RayCollector as RayCollector
    from swath.options import Restarts as Restarts
    from swath.rollout.episodes.gae import GAE as GAE
    from swath.rollout.episodes.nstep import MultiStep as MultiStep
    from swath.rollout.episodes.reshape import split_trajectories as split_trajectories
    from swath.rollout.policies.calling import ExplorationType as ExplorationType
    from swath.rollout.random_policy import RandomPolicy as RandomPolicy
    from swath.weights.updaters import LocalWeightsUpdaterBase as LocalWeightsUpdaterBase
    from swath.weights.updaters import MultiProcessedWeightUpdater as MultiProcessedWeightUpdater
    from swath.weights.updaters import RayWeightUpdater as RayWeightUpdater
    from swath.weights.updaters import RemoteModuleWeightUpdater as RemoteModuleWeightUpdater
    from swath.weights.updaters import RemoteWeightsUpdaterBase as RemoteWeightsUpdaterBase
    from swath.weights.updaters import VanillaWeightUpdater as VanillaWeightUpdater
    from swath.weights.updaters import WeightUpdaterBase as WeightUpdaterBase

_NAMES = (
    "AsyncCollector GAE BaseCollector Collector DataCollectorBase ExplorationType LocalWeightsUpdaterBase "
    "MultiAsyncCollector MultiCollector MultiProcessedWeightUpdater MultiStep MultiSyncCollector "
    "RandomPolicy RayCollector RayWeightUpdater RemoteModuleWeightUpdater RemoteWeightsUpdaterBase "
    "Restarts VanillaWeightUpdater WeightUpdaterBase split_trajectories"
)
__all__ = _NAMES.split()  # noqa: PLE0605  type checkers read the imports above

if not TYPE_CHECKING:  # a type checker must see which names there are not
    __getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "swath"))
