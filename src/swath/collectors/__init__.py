"""Public names of collection."""

from __future__ import annotations

from swath.collectors.base import BaseCollector
from swath.collectors.collector import Collector
from swath.rollout.episodes import split_trajectories
from swath.rollout.exploration import ExplorationType
from swath.rollout.gae import GAE
from swath.rollout.nstep import MultiStep
from swath.rollout.random_policy import RandomPolicy

DataCollectorBase = BaseCollector

__all__ = [
    "GAE",
    "BaseCollector",
    "Collector",
    "DataCollectorBase",
    "ExplorationType",
    "MultiStep",
    "RandomPolicy",
    "split_trajectories",
]
