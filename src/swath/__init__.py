"""Swath: experience from many workers for PyTorch reinforcement learning, and evaluation beside the training.

Public names are loaded at first use, so that `import swath` costs a few milliseconds and imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swath._version import __version__
from swath.lazy import lazy

if TYPE_CHECKING:
    from swath.cli.parts import load_policy
    from swath.collectors.base import BaseCollector, DataCollectorBase
    from swath.collectors.collector import Collector
    from swath.collectors.multi import MultiAsyncCollector, MultiCollector, MultiSyncCollector
    from swath.collectors.ray_collector import RayCollector
    from swath.evaluation.evaluate_policy import evaluate_policy
    from swath.evaluation.evaluator import Evaluator
    from swath.evaluation.ray_eval_worker import RayEvalWorker
    from swath.evaluation.result import Comparison, EvalResult, compare
    from swath.options import Restarts
    from swath.report.progress import Progress
    from swath.rollout.episodes.gae import GAE
    from swath.rollout.episodes.nstep import MultiStep
    from swath.rollout.episodes.reshape import split_trajectories
    from swath.rollout.policies.calling import ExplorationType
    from swath.rollout.policies.random import RandomPolicy
    from swath.rollout_workers.batches.multi_agent import MultiAgentBatch
    from swath.rollout_workers.batches.sample_batch import SampleBatch
    from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
    from swath.rollout_workers.config.policy_spec import PolicySpec
    from swath.rollout_workers.env_context import EnvContext
    from swath.rollout_workers.policy import Policy
    from swath.rollout_workers.worker.worker import RolloutWorker
    from swath.rollout_workers.worker_set.worker_set import WorkerSet
    from swath.weight_update import (
        MultiProcessedWeightSyncScheme,
        MultiProcessWeightSyncScheme,
        NoWeightSyncScheme,
        RayWeightSyncScheme,
        SharedMemWeightSyncScheme,
        WeightStrategy,
        WeightSyncScheme,
    )
    from swath.weights.updaters import (
        LocalWeightsUpdaterBase,
        MultiProcessedWeightUpdater,
        RayWeightUpdater,
        RemoteModuleWeightUpdater,
        RemoteWeightsUpdaterBase,
        VanillaWeightUpdater,
        WeightUpdaterBase,
    )

_HOME = {
    "AlgorithmConfig": "swath.rollout_workers.config.algorithm_config",
    "Policy": "swath.rollout_workers.policy",
    "PolicySpec": "swath.rollout_workers.config.policy_spec",
    "MultiAgentBatch": "swath.rollout_workers.batches.multi_agent",
    "SampleBatch": "swath.rollout_workers.batches.sample_batch",
    "Comparison": "swath.evaluation.result",
    "EnvContext": "swath.rollout_workers.env_context",
    "EvalResult": "swath.evaluation.result",
    "Evaluator": "swath.evaluation.evaluator",
    "ExplorationType": "swath.rollout.policies.calling",
    "BaseCollector": "swath.collectors.base",
    "Collector": "swath.collectors.collector",
    "DataCollectorBase": "swath.collectors.base",
    "GAE": "swath.rollout.episodes.gae",
    "MultiAsyncCollector": "swath.collectors.multi",
    "MultiCollector": "swath.collectors.multi",
    "MultiSyncCollector": "swath.collectors.multi",
    "RayCollector": "swath.collectors.ray_collector",
    "RayEvalWorker": "swath.evaluation.ray_eval_worker",
    "Progress": "swath.report.progress",
    "Restarts": "swath.options",
    "MultiStep": "swath.rollout.episodes.nstep",
    "RandomPolicy": "swath.rollout.policies.random",
    "RolloutWorker": "swath.rollout_workers.worker.worker",
    "WorkerSet": "swath.rollout_workers.worker_set.worker_set",
    "load_policy": "swath.cli.parts",
    "split_trajectories": "swath.rollout.episodes.reshape",
    "compare": "swath.evaluation.result",
    "evaluate_policy": "swath.evaluation.evaluate_policy",
    "LocalWeightsUpdaterBase": "swath.weights.updaters",
    "RemoteWeightsUpdaterBase": "swath.weights.updaters",
    "WeightUpdaterBase": "swath.weights.updaters",
    "MultiProcessedWeightUpdater": "swath.weights.updaters",
    "VanillaWeightUpdater": "swath.weights.updaters",
    "RayWeightUpdater": "swath.weights.updaters",
    "RemoteModuleWeightUpdater": "swath.weights.updaters",
    "WeightSyncScheme": "swath.weight_update",
    "WeightStrategy": "swath.weight_update",
    "RayWeightSyncScheme": "swath.weight_update",
    "MultiProcessWeightSyncScheme": "swath.weight_update",
    "MultiProcessedWeightSyncScheme": "swath.weight_update",
    "SharedMemWeightSyncScheme": "swath.weight_update",
    "NoWeightSyncScheme": "swath.weight_update",
}

_GONE = {"RayReplayBuffer": "use torchrl.data.RayReplayBuffer, which collectors take as replay_buffer="}

__all__ = [
    "GAE",
    "AlgorithmConfig",
    "BaseCollector",
    "Collector",
    "Comparison",
    "DataCollectorBase",
    "EnvContext",
    "EvalResult",
    "Evaluator",
    "ExplorationType",
    "LocalWeightsUpdaterBase",
    "MultiAgentBatch",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiProcessWeightSyncScheme",
    "MultiProcessedWeightSyncScheme",
    "MultiProcessedWeightUpdater",
    "MultiStep",
    "MultiSyncCollector",
    "NoWeightSyncScheme",
    "Policy",
    "PolicySpec",
    "Progress",
    "RandomPolicy",
    "RayCollector",
    "RayEvalWorker",
    "RayWeightSyncScheme",
    "RayWeightUpdater",
    "RemoteModuleWeightUpdater",
    "RemoteWeightsUpdaterBase",
    "Restarts",
    "RolloutWorker",
    "SampleBatch",
    "SharedMemWeightSyncScheme",
    "VanillaWeightUpdater",
    "WeightStrategy",
    "WeightSyncScheme",
    "WeightUpdaterBase",
    "WorkerSet",
    "__version__",
    "compare",
    "evaluate_policy",
    "load_policy",
    "split_trajectories",
]


if not TYPE_CHECKING:  # a type checker must see which names there are not
    __getattr__, __dir__ = lazy(__name__, _HOME, _GONE)
