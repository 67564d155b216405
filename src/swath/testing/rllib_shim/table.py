"""Which names of RLlib's are ours, old places of theirs included."""

from __future__ import annotations

from swath.rollout_workers import (
    AlgorithmConfig,
    ConcurrentMeanStdFilter,
    DefaultCallbacks,
    EnvContext,
    EnvRunner,
    EnvRunnerGroup,
    Episode,
    Filter,
    FilterManager,
    MeanStdFilter,
    MultiAgentBatch,
    MultiAgentEnv,
    NoFilter,
    NoPreprocessor,
    ParallelPettingZooEnv,
    PettingZooEnv,
    PGTorchPolicy,
    Policy,
    PolicySpec,
    Postprocessing,
    PPOTorchPolicy,
    Preprocessor,
    RandomPolicy,
    RLlibCallback,
    RolloutMetrics,
    RolloutWorker,
    RunningStat,
    SampleBatch,
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
    VectorEnv,
    ViewRequirement,
    WorkerSet,
    adjust_nstep,
    attempt_count_timesteps,
    collect_episodes,
    collect_metrics,
    compute_advantages,
    compute_bootstrap_value,
    compute_gae_for_sample_batch,
    concat_samples,
    concat_samples_into_ma_batch,
    convert_ma_batch_to_sample_batch,
    discount_cumsum,
    get_filter,
    get_global_worker,
    get_learner_stats,
    get_preprocessor,
    make_multi_agent,
    register_env,
    summarize_episodes,
    synchronous_parallel_sample,
)
from swath.testing import envs
from swath.testing.rllib_shim.algorithm import PG, PPO, PGConfig, PPOConfig
from swath.testing.rllib_shim.helpers import make_multi_callbacks
from swath.testing.swapping import Lent, Table

_CALLBACKS = {
    "DefaultCallbacks": DefaultCallbacks,
    "RLlibCallback": RLlibCallback,
    "make_multi_callbacks": make_multi_callbacks,
}
_FILTERS = {
    "ConcurrentMeanStdFilter": ConcurrentMeanStdFilter,
    "Filter": Filter,
    "MeanStdFilter": MeanStdFilter,
    "NoFilter": NoFilter,
    "RunningStat": RunningStat,
    "get_filter": get_filter,
}
_BATCHES = {
    "MultiAgentBatch": MultiAgentBatch,
    "SampleBatch": SampleBatch,
    "attempt_count_timesteps": attempt_count_timesteps,
    "concat_samples": concat_samples,
    "concat_samples_into_ma_batch": concat_samples_into_ma_batch,
    "convert_ma_batch_to_sample_batch": convert_ma_batch_to_sample_batch,
}
_POSTPROCESSING = {
    "Postprocessing": Postprocessing,
    "adjust_nstep": adjust_nstep,
    "compute_advantages": compute_advantages,
    "compute_bootstrap_value": compute_bootstrap_value,
    "compute_gae_for_sample_batch": compute_gae_for_sample_batch,
    "discount_cumsum": discount_cumsum,
}
_METRICS = {
    "RolloutMetrics": RolloutMetrics,
    "collect_episodes": collect_episodes,
    "collect_metrics": collect_metrics,
    "get_learner_stats": get_learner_stats,
    "summarize_episodes": summarize_episodes,
}
_MULTI_AGENT = {"MultiAgentEnv": MultiAgentEnv, "make_multi_agent": make_multi_agent}
_PETTINGZOO = {"ParallelPettingZooEnv": ParallelPettingZooEnv, "PettingZooEnv": PettingZooEnv}
_PREPROCESSORS = {
    "NoPreprocessor": NoPreprocessor,
    "Preprocessor": Preprocessor,
    "get_preprocessor": get_preprocessor,
}
_DISTRIBUTIONS = {
    "TorchCategorical": TorchCategorical,
    "TorchDiagGaussian": TorchDiagGaussian,
    "TorchMultiCategorical": TorchMultiCategorical,
}

_TABLE: Table = {
    "ray.rllib.algorithms.algorithm_config": {"AlgorithmConfig": AlgorithmConfig},
    "ray.rllib.algorithms.callbacks": _CALLBACKS,
    "ray.rllib.algorithms.pg": {"PG": PG, "PGConfig": PGConfig, "PGTorchPolicy": PGTorchPolicy},
    "ray.rllib.algorithms.ppo": {"PPO": PPO, "PPOConfig": PPOConfig, "PPOTorchPolicy": PPOTorchPolicy},
    "ray.rllib.algorithms.ppo.ppo_torch_policy": {"PPOTorchPolicy": PPOTorchPolicy},
    "ray.rllib.callbacks.callbacks": _CALLBACKS,
    "ray.rllib.callbacks.utils": {"make_multi_callbacks": make_multi_callbacks},
    "ray.rllib.env": {"EnvContext": EnvContext, "MultiAgentEnv": MultiAgentEnv, "VectorEnv": VectorEnv},
    "ray.rllib.env.env_context": {"EnvContext": EnvContext},
    "ray.rllib.env.env_runner": {"EnvRunner": EnvRunner},
    "ray.rllib.env.env_runner_group": {"EnvRunnerGroup": EnvRunnerGroup},
    "ray.rllib.env.multi_agent_env": _MULTI_AGENT,
    "ray.rllib.env.vector_env": {"VectorEnv": VectorEnv},
    "ray.rllib.env.wrappers.pettingzoo_env": _PETTINGZOO,
    "ray.rllib.evaluation": {"RolloutWorker": RolloutWorker, **_BATCHES, **_METRICS, **_POSTPROCESSING},
    "ray.rllib.evaluation.episode": {"Episode": Episode},
    "ray.rllib.evaluation.episode_v2": {"EpisodeV2": Episode},
    "ray.rllib.evaluation.metrics": _METRICS,
    "ray.rllib.evaluation.postprocessing": _POSTPROCESSING,
    "ray.rllib.evaluation.rollout_worker": {"RolloutWorker": RolloutWorker, "get_global_worker": get_global_worker},
    "ray.rllib.evaluation.worker_set": {"WorkerSet": WorkerSet},
    "ray.rllib.examples._old_api_stack.policy.random_policy": {"RandomPolicy": RandomPolicy},
    "ray.rllib.examples.policy.random_policy": {"RandomPolicy": RandomPolicy},
    "ray.rllib.execution.rollout_ops": {"synchronous_parallel_sample": synchronous_parallel_sample},
    "ray.rllib.models.preprocessors": _PREPROCESSORS,
    "ray.rllib.models.torch.torch_action_dist": _DISTRIBUTIONS,
    "ray.rllib.policy": {"Policy": Policy},
    "ray.rllib.policy.policy": {"Policy": Policy, "PolicySpec": PolicySpec},
    "ray.rllib.policy.sample_batch": _BATCHES,
    "ray.rllib.policy.view_requirement": {"ViewRequirement": ViewRequirement},
    "ray.rllib.utils": {"FilterManager": FilterManager},
    "ray.rllib.utils.filter": _FILTERS,
    "ray.rllib.utils.filter_manager": {"FilterManager": FilterManager},
    "ray.tune": {"register_env": register_env},
    "ray.tune.registry": {"register_env": register_env},
}

ENV_FOLDERS = ("ray.rllib.examples.envs.classes", "ray.rllib.examples.envs.utils", "ray.rllib.examples.env")
"""Where the envs of examples and tests are, or were; the first is where an installed Ray has them."""

_AGENTS = {
    "BasicMultiAgent": envs.BasicMultiAgent,
    "EarlyDoneMultiAgent": envs.EarlyDoneMultiAgent,
    "FlexAgentsMultiAgent": envs.FlexAgentsMultiAgent,
    "MultiAgentCartPole": envs.MultiAgentCartPole,
    "RoundRobinMultiAgent": envs.RoundRobinMultiAgent,
    "SometimesZeroAgentsMultiAgent": envs.SometimesZeroAgentsMultiAgent,
    "make_multi_agent": make_multi_agent,
}
_ENVS: Table = {
    ".mock_env": {
        "MockEnv": envs.MockEnv,
        "MockEnv2": envs.MockEnv2,
        "MockEnv3": envs.MockEnv3,
        "MockVectorEnv": envs.MockVectorEnv,
        "VectorizedMockEnv": envs.VectorizedMockEnv,
    },
    ".multi_agent": _AGENTS,
    ".random_env": {"RandomEnv": envs.RandomEnv, "RandomMultiAgentEnv": envs.RandomMultiAgentEnv},
}

TABLE: Table = {
    **_TABLE,
    **{folder + module: names for folder in ENV_FOLDERS for module, names in _ENVS.items()},
    "ray.rllib.examples.envs.utils": _AGENTS,
}
"""Modules that the installed Ray lacks are here too, from 2.4 on."""

LENT: Lent = {Filter: {"clear_buffer": lambda own: own.reset_buffer()}}
"""Names of old that RLlib's tests call."""
