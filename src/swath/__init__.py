"""Swath: experience from many workers for PyTorch reinforcement learning, and evaluation during training.

Public names are loaded at first use, so that `import swath` costs a few milliseconds and imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swath._version import __version__ as __version__
from swath.lazy import lazy

if TYPE_CHECKING:
    from swath.cli.parts import load_policy as load_policy
    from swath.collectors.base import BaseCollector as BaseCollector
    from swath.collectors.base import DataCollectorBase as DataCollectorBase
    from swath.collectors.collector import Collector as Collector
    from swath.collectors.multi import AsyncCollector as AsyncCollector
    from swath.collectors.multi import MultiAsyncCollector as MultiAsyncCollector
    from swath.collectors.multi import MultiCollector as MultiCollector
    from swath.collectors.multi import MultiSyncCollector as MultiSyncCollector
    from swath.collectors.ray_collector import RayCollector as RayCollector
    from swath.evaluation.evaluate_policy import evaluate_policy as evaluate_policy
    from swath.evaluation.evaluator import Evaluator as Evaluator
    from swath.evaluation.ray_eval_worker import RayEvalWorker as RayEvalWorker
    from swath.evaluation.result import Comparison as Comparison
    from swath.evaluation.result import EvalResult as EvalResult
    from swath.evaluation.result import compare as compare
    from swath.options import Restarts as Restarts
    from swath.report.display import Progress as Progress
    from swath.rollout.episodes.gae import GAE as GAE
    from swath.rollout.episodes.nstep import MultiStep as MultiStep
    from swath.rollout.episodes.reshape import split_trajectories as split_trajectories
    from swath.rollout.policies.calling import ExplorationType as ExplorationType
    from swath.rollout.random_policy import RandomPolicy as RandomPolicy
    from swath.rollout_workers.batches.sample_batch import MultiAgentBatch as MultiAgentBatch
    from swath.rollout_workers.batches.sample_batch import SampleBatch as SampleBatch
    from swath.rollout_workers.config.algorithm_config import AlgorithmConfig as AlgorithmConfig
    from swath.rollout_workers.config.policy_spec import PolicySpec as PolicySpec
    from swath.rollout_workers.env_runner import EnvContext as EnvContext
    from swath.rollout_workers.policy import Policy as Policy
    from swath.rollout_workers.worker.worker import RolloutWorker as RolloutWorker
    from swath.rollout_workers.worker_set.worker_set import WorkerSet as WorkerSet
    from swath.weight_update import MultiProcessedWeightSyncScheme as MultiProcessedWeightSyncScheme
    from swath.weight_update import MultiProcessWeightSyncScheme as MultiProcessWeightSyncScheme
    from swath.weight_update import NoWeightSyncScheme as NoWeightSyncScheme
    from swath.weight_update import RayWeightSyncScheme as RayWeightSyncScheme
    from swath.weight_update import SharedMemWeightSyncScheme as SharedMemWeightSyncScheme
    from swath.weight_update import WeightStrategy as WeightStrategy
    from swath.weight_update import WeightSyncScheme as WeightSyncScheme
    from swath.weights.updaters import LocalWeightsUpdaterBase as LocalWeightsUpdaterBase
    from swath.weights.updaters import MultiProcessedWeightUpdater as MultiProcessedWeightUpdater
    from swath.weights.updaters import RayWeightUpdater as RayWeightUpdater
    from swath.weights.updaters import RemoteModuleWeightUpdater as RemoteModuleWeightUpdater
    from swath.weights.updaters import RemoteWeightsUpdaterBase as RemoteWeightsUpdaterBase
    from swath.weights.updaters import VanillaWeightUpdater as VanillaWeightUpdater
    from swath.weights.updaters import WeightUpdaterBase as WeightUpdaterBase

_NAMES = {
    "swath.cli.parts": "load_policy",
    "swath.collectors.base": "BaseCollector DataCollectorBase",
    "swath.collectors.collector": "Collector",
    "swath.collectors.multi": "AsyncCollector MultiAsyncCollector MultiCollector MultiSyncCollector",
    "swath.collectors.ray_collector": "RayCollector",
    "swath.evaluation.evaluate_policy": "evaluate_policy",
    "swath.evaluation.evaluator": "Evaluator",
    "swath.evaluation.ray_eval_worker": "RayEvalWorker",
    "swath.evaluation.result": "Comparison EvalResult compare",
    "swath.options": "Restarts",
    "swath.report.display": "Progress",
    "swath.rollout.episodes.gae": "GAE",
    "swath.rollout.episodes.nstep": "MultiStep",
    "swath.rollout.episodes.reshape": "split_trajectories",
    "swath.rollout.policies.calling": "ExplorationType",
    "swath.rollout.random_policy": "RandomPolicy",
    "swath.rollout_workers.batches.sample_batch": "MultiAgentBatch SampleBatch",
    "swath.rollout_workers.config.algorithm_config": "AlgorithmConfig",
    "swath.rollout_workers.config.policy_spec": "PolicySpec",
    "swath.rollout_workers.env_runner": "EnvContext",
    "swath.rollout_workers.policy": "Policy",
    "swath.rollout_workers.worker.worker": "RolloutWorker",
    "swath.rollout_workers.worker_set.worker_set": "WorkerSet",
    "swath.weight_update": "MultiProcessWeightSyncScheme MultiProcessedWeightSyncScheme NoWeightSyncScheme "
    "RayWeightSyncScheme SharedMemWeightSyncScheme WeightStrategy WeightSyncScheme",
    "swath.weights.updaters": "LocalWeightsUpdaterBase MultiProcessedWeightUpdater RayWeightUpdater "
    "RemoteModuleWeightUpdater RemoteWeightsUpdaterBase VanillaWeightUpdater WeightUpdaterBase",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
_REPLACED = {"RayReplayBuffer": "use torchrl.data.RayReplayBuffer, which collectors take as replay_buffer="}

__all__ = sorted([*_MODULES, "__version__"])  # noqa: PLE0605  type checkers read the imports above

if not TYPE_CHECKING:  # a type checker must see which names there are not
    __getattr__, __dir__ = lazy(__name__, _MODULES, _REPLACED)
