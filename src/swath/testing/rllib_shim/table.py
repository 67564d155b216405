"""Which names of RLlib's are ours, old places of theirs included, and which of RLlib's own tests are left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swath import rollout_workers
from swath.rollout_workers import Episode, Filter
from swath.testing import envs
from swath.testing.rllib_shim.stand_ins import PG, PPO, PGConfig, PPOConfig, make_multi_callbacks
from swath.testing.shim import Lent, Table

ENV_FOLDERS = ("ray.rllib.examples.envs.classes", "ray.rllib.examples.envs.utils", "ray.rllib.examples.env")
"""Where the envs of examples and tests are, or were; the first is where an installed Ray has them."""

_CALLBACKS = "DefaultCallbacks RLlibCallback make_multi_callbacks"
_BATCHES = (
    "MultiAgentBatch SampleBatch attempt_count_timesteps concat_samples concat_samples_into_ma_batch "
    "convert_ma_batch_to_sample_batch"
)
_POSTPROCESSING = (
    "Postprocessing adjust_nstep compute_advantages compute_bootstrap_value compute_gae_for_sample_batch "
    "discount_cumsum"
)
_METRICS = "RolloutMetrics collect_episodes collect_metrics get_learner_stats summarize_episodes"
_AGENTS = (
    "BasicMultiAgent EarlyDoneMultiAgent FlexAgentsMultiAgent MultiAgentCartPole RoundRobinMultiAgent "
    "SometimesZeroAgentsMultiAgent make_multi_agent"
)
_NAMES = {
    "ray.rllib.algorithms.algorithm_config": "AlgorithmConfig",
    "ray.rllib.algorithms.callbacks": _CALLBACKS,
    "ray.rllib.algorithms.pg": "PG PGConfig PGTorchPolicy",
    "ray.rllib.algorithms.ppo": "PPO PPOConfig PPOTorchPolicy",
    "ray.rllib.algorithms.ppo.ppo_torch_policy": "PPOTorchPolicy",
    "ray.rllib.callbacks.callbacks": _CALLBACKS,
    "ray.rllib.callbacks.utils": "make_multi_callbacks",
    "ray.rllib.env": "EnvContext MultiAgentEnv VectorEnv",
    "ray.rllib.env.env_context": "EnvContext",
    "ray.rllib.env.env_runner": "EnvRunner",
    "ray.rllib.env.env_runner_group": "EnvRunnerGroup",
    "ray.rllib.env.multi_agent_env": "MultiAgentEnv make_multi_agent",
    "ray.rllib.env.vector_env": "VectorEnv",
    "ray.rllib.env.wrappers.pettingzoo_env": "ParallelPettingZooEnv PettingZooEnv",
    "ray.rllib.evaluation": f"RolloutWorker {_BATCHES} {_METRICS} {_POSTPROCESSING}",
    "ray.rllib.evaluation.episode": "Episode",
    "ray.rllib.evaluation.episode_v2": "EpisodeV2",
    "ray.rllib.evaluation.metrics": _METRICS,
    "ray.rllib.evaluation.postprocessing": _POSTPROCESSING,
    "ray.rllib.evaluation.rollout_worker": "RolloutWorker get_global_worker",
    "ray.rllib.evaluation.worker_set": "WorkerSet",
    "ray.rllib.examples._old_api_stack.policy.random_policy": "RandomPolicy",
    "ray.rllib.examples.policy.random_policy": "RandomPolicy",
    "ray.rllib.execution.rollout_ops": "synchronous_parallel_sample",
    "ray.rllib.models.preprocessors": "NoPreprocessor Preprocessor get_preprocessor",
    "ray.rllib.models.torch.torch_action_dist": "TorchCategorical TorchDiagGaussian TorchMultiCategorical",
    "ray.rllib.policy": "Policy",
    "ray.rllib.policy.policy": "Policy PolicySpec",
    "ray.rllib.policy.sample_batch": _BATCHES,
    "ray.rllib.policy.view_requirement": "ViewRequirement",
    "ray.rllib.utils": "FilterManager",
    "ray.rllib.utils.filter": "ConcurrentMeanStdFilter Filter MeanStdFilter NoFilter RunningStat get_filter",
    "ray.rllib.utils.filter_manager": "FilterManager",
    "ray.tune": "register_env",
    "ray.tune.registry": "register_env",
    **{f"{folder}.mock_env": "MockEnv MockEnv2 MockEnv3 MockVectorEnv VectorizedMockEnv" for folder in ENV_FOLDERS},
    **{f"{folder}.multi_agent": _AGENTS for folder in ENV_FOLDERS},
    **{f"{folder}.random_env": "RandomEnv RandomMultiAgentEnv" for folder in ENV_FOLDERS},
    "ray.rllib.examples.envs.utils": _AGENTS,
}
_STAND_INS = {
    "EpisodeV2": Episode,
    "PG": PG,
    "PGConfig": PGConfig,
    "PPO": PPO,
    "PPOConfig": PPOConfig,
    "make_multi_callbacks": make_multi_callbacks,
}


def _ours(name: str) -> Any:
    return _STAND_INS.get(name) or getattr(envs, name, None) or getattr(rollout_workers, name)


TABLE: Table = {module: {name: _ours(name) for name in names.split()} for module, names in _NAMES.items()}
"""Modules that the installed Ray lacks are here too, from 2.4 on."""

LENT: Lent = {Filter: {"clear_buffer": lambda own: own.reset_buffer()}}
"""Names of old that RLlib's tests call."""

_ALL_LEFT_OUT = {
    "algorithms/tests/test_algorithm_config.py": {
        "test_config_per_module": "overrides settings per RLModule; here a PolicySpec's config does it, per policy",
        "test_detect_atari_env": "asks whether an env is an Atari game; no setting depends on that here",
        "test_running_specific_algo_with_generic_config": "builds an algorithm of an AlgorithmConfig, which raises",
        "test_get_multi_rl_module_spec test_learner_api test_rl_module_api": "asks for learners and RLModules, which "
        "belong to the new API stack",
    },
    "callbacks/tests/test_callbacks_old_api_stack.py": {
        "test_on_episode_created": "counts on an episode being made with the last step of the one before; here it is "
        "made by the sample() that acts in it",
    },
    "env/tests/test_multi_agent_env.py": {
        "test_custom_rnn_state_values": "begins with an empty state; here get_initial_state() gives its arrays",
        "test_multi_agent_sample_async_remote test_multi_agent_sample_sync_remote": "sets remote_worker_envs; here "
        "sub-envs step in their worker",
        "test_no_reset_until_poll test_vectorize_basic test_vectorize_round_robin": "asks for BaseEnv's poll() and "
        "send_actions(): here a worker steps its envs itself, all at once",
    },
    "evaluation/tests/test_env_runner_v2.py": {
        "test_action_connector_gets_raw_input_dict": "adds a connector to a policy; there are none here",
        "test_env_error test_env_runner_output test_guess_the_number_multi_agent "
        "test_inference_batches_are_grouped_by_policy test_start_episode": "sets RLModules, which belong to the new "
        "API stack, and drives the private runner behind a worker",
    },
    "evaluation/tests/test_envs_that_crash.py": {
        "test_crash_during_env_pre_checking": "wants envs stepped when a worker is built; here sample() is the first "
        "to step them",
        "test_crash_only_one_worker_during_sampling_but_ignore "
        "test_crash_only_one_worker_during_sampling_but_recreate": "sets env_runner_cls: a worker whose ping() fails "
        "with its env; here an env that raises ends no worker",
    },
    "evaluation/tests/test_episode.py": {
        "test_single_agent_env test_multi_agent_env": "reads private attributes of episodes that RLlib has dropped; "
        "here episodes keep running sums alone",
    },
    "evaluation/tests/test_episode_v2.py": {
        "test_single_agent_env": "wants a MultiAgentBatch of one policy; here, as elsewhere, it is a SampleBatch",
    },
    "evaluation/tests/test_rollout_worker.py": {
        "test_metrics": "hands actors made elsewhere to WorkerSet.reset; here a set builds its own workers",
    },
    "evaluation/tests/test_trajectory_view_api.py": {
        "test_counting_by_agent_steps": "reads training results that only an algorithm has",
        "test_traj_view_attention_functionality test_traj_view_attention_net test_traj_view_lstm_functionality "
        "test_traj_view_lstm_prev_actions_and_rewards test_traj_view_normal_case": "trains with an algorithm, or a "
        "network, that is not here",
        "test_get_single_step_input_dict_batch_repeat_value_1 "
        "test_get_single_step_input_dict_batch_repeat_value_larger_1 test_traj_view_next_action": "has the worker, or "
        "a batch, make columns of other steps; here postprocess_trajectory may add them",
    },
    "policy/tests/test_sample_batch.py": {
        "test_compression": "compresses columns; here they stay as they are",
        "test_dict_properties_of_sample_batches": "asks which columns were read; here batches do not record that",
        "test_to_device": "has RepeatedValues; here padded values and their lengths are two columns",
        "test_interceptors test_shuffle_with_interceptor": "sets an interceptor of reads; there are none here",
    },
    "tests/test_filters.py": {
        "testRunningStat": "wants the squared mean for the variance of one value; RLlib gives 0 today, and so do we",
        "testSynchronize": "hands a list of actors to FilterManager.synchronize, which takes a set of workers today",
    },
}
LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    file: {test: reason for tests, reason in reasons.items() for test in tests.split()}
    for file, reasons in _ALL_LEFT_OUT.items()
}
"""Tests of RLlib's own that are not run on ours, each with the reason; by the end of their file's path, and name."""


def reason_to_leave_out(path: Path, test: str) -> str | None:
    """Why a test is not run; None: it is."""
    for file, reasons in LEFT_OUT.items():
        if path.as_posix().endswith(f"/{file}"):
            return reasons.get(test)
    return None
