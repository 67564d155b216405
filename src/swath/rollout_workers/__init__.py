"""The face for users of RLlib's `RolloutWorker` and `WorkerSet`, over the same core as the collectors.

Public names are loaded at first use. Each has two lines here: an import for type checkers, and its home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swath.lazy import lazy

if TYPE_CHECKING:
    from swath.rollout_workers.advantages import discount_cumsum as discount_cumsum
    from swath.rollout_workers.batches.compression import is_compressed as is_compressed
    from swath.rollout_workers.batches.compression import pack as pack
    from swath.rollout_workers.batches.compression import unpack as unpack
    from swath.rollout_workers.batches.counting import attempt_count_timesteps as attempt_count_timesteps
    from swath.rollout_workers.batches.joining import concat_samples as concat_samples
    from swath.rollout_workers.batches.joining import concat_samples_into_ma_batch as concat_samples_into_ma_batch
    from swath.rollout_workers.batches.joining import (
        convert_ma_batch_to_sample_batch as convert_ma_batch_to_sample_batch,
    )
    from swath.rollout_workers.batches.multi_agent import MultiAgentBatch as MultiAgentBatch
    from swath.rollout_workers.batches.repeated import RepeatedValues as RepeatedValues
    from swath.rollout_workers.batches.sample_batch import SampleBatch as SampleBatch
    from swath.rollout_workers.batches.views import ViewRequirement as ViewRequirement
    from swath.rollout_workers.callbacks import DefaultCallbacks as DefaultCallbacks
    from swath.rollout_workers.callbacks import RLlibCallback as RLlibCallback
    from swath.rollout_workers.config import DEFAULT_POLICY_ID as DEFAULT_POLICY_ID
    from swath.rollout_workers.config import AlgorithmConfig as AlgorithmConfig
    from swath.rollout_workers.config import PolicySpec as PolicySpec
    from swath.rollout_workers.config import register_env as register_env
    from swath.rollout_workers.env_context import EnvContext as EnvContext
    from swath.rollout_workers.env_runner import EnvRunner as EnvRunner
    from swath.rollout_workers.episode import Episode as Episode
    from swath.rollout_workers.filters.base import Filter as Filter
    from swath.rollout_workers.filters.base import NoFilter as NoFilter
    from swath.rollout_workers.filters.mean_std import ConcurrentMeanStdFilter as ConcurrentMeanStdFilter
    from swath.rollout_workers.filters.mean_std import MeanStdFilter as MeanStdFilter
    from swath.rollout_workers.filters.named import get_filter as get_filter
    from swath.rollout_workers.filters.running_stat import RunningStat as RunningStat
    from swath.rollout_workers.filters.sharing import FilterManager as FilterManager
    from swath.rollout_workers.metrics import collect_episodes as collect_episodes
    from swath.rollout_workers.metrics import collect_metrics as collect_metrics
    from swath.rollout_workers.metrics import get_learner_stats as get_learner_stats
    from swath.rollout_workers.multi_agent_env import MultiAgentEnv as MultiAgentEnv
    from swath.rollout_workers.multi_agent_env import ParallelPettingZooEnv as ParallelPettingZooEnv
    from swath.rollout_workers.multi_agent_env import PettingZooEnv as PettingZooEnv
    from swath.rollout_workers.multi_agent_env import make_multi_agent as make_multi_agent
    from swath.rollout_workers.parallel_iterator import ParallelIteratorWorker as ParallelIteratorWorker
    from swath.rollout_workers.policies.distributions import TorchCategorical as TorchCategorical
    from swath.rollout_workers.policies.distributions import TorchDiagGaussian as TorchDiagGaussian
    from swath.rollout_workers.policies.distributions import TorchMultiCategorical as TorchMultiCategorical
    from swath.rollout_workers.policies.pg import PGTorchPolicy as PGTorchPolicy
    from swath.rollout_workers.policies.ppo import PPOTorchPolicy as PPOTorchPolicy
    from swath.rollout_workers.policies.random import RandomPolicy as RandomPolicy
    from swath.rollout_workers.policies.torch import TorchPolicy as TorchPolicy
    from swath.rollout_workers.policy import Policy as Policy
    from swath.rollout_workers.postprocessing import Postprocessing as Postprocessing
    from swath.rollout_workers.postprocessing import adjust_nstep as adjust_nstep
    from swath.rollout_workers.postprocessing import compute_advantages as compute_advantages
    from swath.rollout_workers.postprocessing import compute_bootstrap_value as compute_bootstrap_value
    from swath.rollout_workers.postprocessing import compute_gae_for_sample_batch as compute_gae_for_sample_batch
    from swath.rollout_workers.preprocessors import NoPreprocessor as NoPreprocessor
    from swath.rollout_workers.preprocessors import Preprocessor as Preprocessor
    from swath.rollout_workers.preprocessors import get_preprocessor as get_preprocessor
    from swath.rollout_workers.rollout_metrics import RolloutMetrics as RolloutMetrics
    from swath.rollout_workers.summary import summarize_episodes as summarize_episodes
    from swath.rollout_workers.vector_env import VectorEnv as VectorEnv
    from swath.rollout_workers.worker.worker import RolloutWorker as RolloutWorker
    from swath.rollout_workers.worker.worker import get_global_worker as get_global_worker
    from swath.rollout_workers.worker_set.replies import Reply as Reply
    from swath.rollout_workers.worker_set.sampling import synchronous_parallel_sample as synchronous_parallel_sample
    from swath.rollout_workers.worker_set.worker_set import EnvRunnerGroup as EnvRunnerGroup
    from swath.rollout_workers.worker_set.worker_set import WorkerSet as WorkerSet


_HOME = {
    "AlgorithmConfig": "swath.rollout_workers.config",
    "ConcurrentMeanStdFilter": "swath.rollout_workers.filters.mean_std",
    "DEFAULT_POLICY_ID": "swath.rollout_workers.config",
    "DefaultCallbacks": "swath.rollout_workers.callbacks",
    "EnvContext": "swath.rollout_workers.env_context",
    "EnvRunnerGroup": "swath.rollout_workers.worker_set.worker_set",
    "Episode": "swath.rollout_workers.episode",
    "Filter": "swath.rollout_workers.filters.base",
    "FilterManager": "swath.rollout_workers.filters.sharing",
    "MeanStdFilter": "swath.rollout_workers.filters.mean_std",
    "MultiAgentBatch": "swath.rollout_workers.batches.multi_agent",
    "MultiAgentEnv": "swath.rollout_workers.multi_agent_env",
    "NoFilter": "swath.rollout_workers.filters.base",
    "NoPreprocessor": "swath.rollout_workers.preprocessors",
    "ParallelIteratorWorker": "swath.rollout_workers.parallel_iterator",
    "ParallelPettingZooEnv": "swath.rollout_workers.multi_agent_env",
    "PettingZooEnv": "swath.rollout_workers.multi_agent_env",
    "PGTorchPolicy": "swath.rollout_workers.policies.pg",
    "PPOTorchPolicy": "swath.rollout_workers.policies.ppo",
    "TorchCategorical": "swath.rollout_workers.policies.distributions",
    "TorchDiagGaussian": "swath.rollout_workers.policies.distributions",
    "TorchMultiCategorical": "swath.rollout_workers.policies.distributions",
    "TorchPolicy": "swath.rollout_workers.policies.torch",
    "Policy": "swath.rollout_workers.policy",
    "PolicySpec": "swath.rollout_workers.config",
    "Postprocessing": "swath.rollout_workers.postprocessing",
    "Preprocessor": "swath.rollout_workers.preprocessors",
    "RLlibCallback": "swath.rollout_workers.callbacks",
    "RepeatedValues": "swath.rollout_workers.batches.repeated",
    "RandomPolicy": "swath.rollout_workers.policies.random",
    "Reply": "swath.rollout_workers.worker_set.replies",
    "RolloutMetrics": "swath.rollout_workers.rollout_metrics",
    "RunningStat": "swath.rollout_workers.filters.running_stat",
    "SampleBatch": "swath.rollout_workers.batches.sample_batch",
    "VectorEnv": "swath.rollout_workers.vector_env",
    "EnvRunner": "swath.rollout_workers.env_runner",
    "RolloutWorker": "swath.rollout_workers.worker.worker",
    "get_global_worker": "swath.rollout_workers.worker.worker",
    "ViewRequirement": "swath.rollout_workers.batches.views",
    "WorkerSet": "swath.rollout_workers.worker_set.worker_set",
    "adjust_nstep": "swath.rollout_workers.postprocessing",
    "attempt_count_timesteps": "swath.rollout_workers.batches.counting",
    "collect_episodes": "swath.rollout_workers.metrics",
    "collect_metrics": "swath.rollout_workers.metrics",
    "compute_advantages": "swath.rollout_workers.postprocessing",
    "compute_bootstrap_value": "swath.rollout_workers.postprocessing",
    "compute_gae_for_sample_batch": "swath.rollout_workers.postprocessing",
    "concat_samples": "swath.rollout_workers.batches.joining",
    "concat_samples_into_ma_batch": "swath.rollout_workers.batches.joining",
    "convert_ma_batch_to_sample_batch": "swath.rollout_workers.batches.joining",
    "discount_cumsum": "swath.rollout_workers.advantages",
    "get_filter": "swath.rollout_workers.filters.named",
    "get_learner_stats": "swath.rollout_workers.metrics",
    "get_preprocessor": "swath.rollout_workers.preprocessors",
    "is_compressed": "swath.rollout_workers.batches.compression",
    "make_multi_agent": "swath.rollout_workers.multi_agent_env",
    "pack": "swath.rollout_workers.batches.compression",
    "register_env": "swath.rollout_workers.config",
    "summarize_episodes": "swath.rollout_workers.summary",
    "synchronous_parallel_sample": "swath.rollout_workers.worker_set.sampling",
    "unpack": "swath.rollout_workers.batches.compression",
}


if not TYPE_CHECKING:  # a type checker must see which names there are not
    __all__ = [*_HOME]  # noqa: PLE0604  they are strings
    __getattr__, __dir__ = lazy(__name__, _HOME)
