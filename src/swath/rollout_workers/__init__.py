"""The face for users of RLlib's `RolloutWorker` and `WorkerSet`, over the same core as the collectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swath.lazy import lazy
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID as DEFAULT_POLICY_ID
from swath.rollout_workers.batches.names import ViewRequirement as ViewRequirement
from swath.rollout_workers.batches.rows import attempt_count_timesteps as attempt_count_timesteps
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch as MultiAgentBatch
from swath.rollout_workers.batches.sample_batch import SampleBatch as SampleBatch
from swath.rollout_workers.batches.sample_batch import concat_samples as concat_samples
from swath.rollout_workers.batches.sample_batch import concat_samples_into_ma_batch as concat_samples_into_ma_batch
from swath.rollout_workers.batches.sample_batch import (
    convert_ma_batch_to_sample_batch as convert_ma_batch_to_sample_batch,
)
from swath.rollout_workers.callbacks import DefaultCallbacks as DefaultCallbacks
from swath.rollout_workers.callbacks import RLlibCallback as RLlibCallback
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig as AlgorithmConfig
from swath.rollout_workers.config.algorithm_config import PPOConfig as PPOConfig
from swath.rollout_workers.config.policy_spec import PolicySpec as PolicySpec
from swath.rollout_workers.env_runner import EnvContext as EnvContext
from swath.rollout_workers.env_runner import EnvRunner as EnvRunner
from swath.rollout_workers.env_runner import register_env as register_env
from swath.rollout_workers.filters import ConcurrentMeanStdFilter as ConcurrentMeanStdFilter
from swath.rollout_workers.filters import Filter as Filter
from swath.rollout_workers.filters import FilterManager as FilterManager
from swath.rollout_workers.filters import MeanStdFilter as MeanStdFilter
from swath.rollout_workers.filters import NoFilter as NoFilter
from swath.rollout_workers.filters import RunningStat as RunningStat
from swath.rollout_workers.filters import get_filter as get_filter
from swath.rollout_workers.metrics import RolloutMetrics as RolloutMetrics
from swath.rollout_workers.metrics import collect_episodes as collect_episodes
from swath.rollout_workers.metrics import collect_metrics as collect_metrics
from swath.rollout_workers.metrics import get_learner_stats as get_learner_stats
from swath.rollout_workers.metrics import summarize_episodes as summarize_episodes
from swath.rollout_workers.multi_agent_env import MultiAgentEnv as MultiAgentEnv
from swath.rollout_workers.multi_agent_env import ParallelPettingZooEnv as ParallelPettingZooEnv
from swath.rollout_workers.multi_agent_env import PettingZooEnv as PettingZooEnv
from swath.rollout_workers.multi_agent_env import make_multi_agent as make_multi_agent
from swath.rollout_workers.parallel_iterator import ParallelIteratorWorker as ParallelIteratorWorker
from swath.rollout_workers.policies.networks import TorchCategorical as TorchCategorical
from swath.rollout_workers.policies.networks import TorchDiagGaussian as TorchDiagGaussian
from swath.rollout_workers.policies.networks import TorchMultiCategorical as TorchMultiCategorical
from swath.rollout_workers.policies.ppo import PGTorchPolicy as PGTorchPolicy
from swath.rollout_workers.policies.ppo import PPOTorchPolicy as PPOTorchPolicy
from swath.rollout_workers.policies.torch import TorchPolicy as TorchPolicy
from swath.rollout_workers.policy import Policy as Policy
from swath.rollout_workers.policy import RandomPolicy as RandomPolicy
from swath.rollout_workers.postprocessing import Postprocessing as Postprocessing
from swath.rollout_workers.postprocessing import adjust_nstep as adjust_nstep
from swath.rollout_workers.postprocessing import compute_advantages as compute_advantages
from swath.rollout_workers.postprocessing import compute_bootstrap_value as compute_bootstrap_value
from swath.rollout_workers.postprocessing import compute_gae_for_sample_batch as compute_gae_for_sample_batch
from swath.rollout_workers.postprocessing import discount_cumsum as discount_cumsum
from swath.rollout_workers.processing import NoPreprocessor as NoPreprocessor
from swath.rollout_workers.processing import Preprocessor as Preprocessor
from swath.rollout_workers.processing import get_preprocessor as get_preprocessor
from swath.rollout_workers.sampling.slots import Episode as Episode
from swath.rollout_workers.vector_env import VectorEnv as VectorEnv
from swath.rollout_workers.worker.worker import RolloutWorker as RolloutWorker
from swath.rollout_workers.worker.worker import get_global_worker as get_global_worker
from swath.rollout_workers.worker_set.calls import synchronous_parallel_sample as synchronous_parallel_sample
from swath.rollout_workers.worker_set.group import Reply as Reply
from swath.rollout_workers.worker_set.worker_set import EnvRunnerGroup as EnvRunnerGroup
from swath.rollout_workers.worker_set.worker_set import WorkerSet as WorkerSet

_REPLACEMENT = "give padded values and their lengths as two columns; keep batches with numpy.savez_compressed"
_MISSING = "RepeatedValues", "compress", "pack", "pack_if_needed", "unpack", "is_compressed"

if not TYPE_CHECKING:  # a type checker must see which names are missing
    __getattr__, _ = lazy(__name__, {}, dict.fromkeys(_MISSING, _REPLACEMENT))
