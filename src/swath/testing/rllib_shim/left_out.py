"""Tests of RLlib's own that are not run on ours, each with the reason; by the end of their file's path, and name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Reasons = Mapping[str, str]

_BASE_ENV = "asks for BaseEnv's poll() and send_actions(): here a worker steps its envs itself, all at once"
_REMOTE_ENVS = "sets remote_worker_envs; here sub-envs step in their worker"
_NEW_STACK = "asks for learners and RLModules, which belong to the new API stack"
_MODULES = "sets RLModules, which belong to the new API stack, and drives the private runner behind a worker"
_CRASHING_WORKER = (
    "sets env_runner_cls: a worker whose ping() fails with its env; here an env that raises ends no worker"
)
_PRIVATE_EPISODE = "reads private attributes of episodes that RLlib has dropped; here episodes keep running sums alone"

_ALGORITHM = "trains with an algorithm, or a network, that is not here"
_VIEWS = "has the worker, or a batch, make columns of other steps; here postprocess_trajectory may add them"


def _all(names: str, reason: str) -> Reasons:
    return dict.fromkeys(names.split(), reason)


LEFT_OUT: Mapping[str, Reasons] = {
    "algorithms/tests/test_algorithm_config.py": {
        "test_config_per_module": "overrides settings per RLModule; here a PolicySpec's config does it, per policy",
        "test_detect_atari_env": "asks whether an env is an Atari game; no setting depends on that here",
        "test_running_specific_algo_with_generic_config": "builds an algorithm of an AlgorithmConfig, which raises",
        **_all("test_get_multi_rl_module_spec test_learner_api test_rl_module_api", _NEW_STACK),
    },
    "callbacks/tests/test_callbacks_old_api_stack.py": {
        "test_on_episode_created": "counts on an episode being made with the last step of the one before; here it is "
        "made by the sample() that acts in it"
    },
    "env/tests/test_multi_agent_env.py": {
        "test_custom_rnn_state_values": "begins with an empty state; here get_initial_state() gives its arrays",
        **_all("test_multi_agent_sample_async_remote test_multi_agent_sample_sync_remote", _REMOTE_ENVS),
        **_all("test_no_reset_until_poll test_vectorize_basic test_vectorize_round_robin", _BASE_ENV),
    },
    "evaluation/tests/test_env_runner_v2.py": {
        "test_action_connector_gets_raw_input_dict": "adds a connector to a policy; there are none here",
        **_all(
            "test_env_error test_env_runner_output test_guess_the_number_multi_agent "
            "test_inference_batches_are_grouped_by_policy test_start_episode",
            _MODULES,
        ),
    },
    "evaluation/tests/test_envs_that_crash.py": {
        "test_crash_during_env_pre_checking": "wants envs stepped when a worker is built; here sample() is the "
        "first to step them",
        **_all(
            "test_crash_only_one_worker_during_sampling_but_ignore "
            "test_crash_only_one_worker_during_sampling_but_recreate",
            _CRASHING_WORKER,
        ),
    },
    "evaluation/tests/test_episode.py": _all("test_single_agent_env test_multi_agent_env", _PRIVATE_EPISODE),
    "evaluation/tests/test_episode_v2.py": {
        "test_single_agent_env": "wants a MultiAgentBatch of one policy; here, as elsewhere, it is a SampleBatch"
    },
    "evaluation/tests/test_rollout_worker.py": {
        "test_metrics": "hands actors made elsewhere to WorkerSet.reset; here a set builds its own workers"
    },
    "evaluation/tests/test_trajectory_view_api.py": {
        "test_counting_by_agent_steps": "reads training results that only an algorithm has",
        **_all(
            "test_traj_view_attention_functionality test_traj_view_attention_net "
            "test_traj_view_lstm_functionality test_traj_view_lstm_prev_actions_and_rewards test_traj_view_normal_case",
            _ALGORITHM,
        ),
        **_all(
            "test_get_single_step_input_dict_batch_repeat_value_1 "
            "test_get_single_step_input_dict_batch_repeat_value_larger_1 test_traj_view_next_action",
            _VIEWS,
        ),
    },
    "policy/tests/test_sample_batch.py": {
        "test_compression": "compresses columns; here they stay as they are",
        "test_dict_properties_of_sample_batches": "asks which columns were read; here batches do not record that",
        "test_to_device": "has RepeatedValues; here padded values and their lengths are two columns",
        **_all("test_interceptors test_shuffle_with_interceptor", "sets an interceptor of reads; there are none here"),
    },
    "tests/test_filters.py": {
        "testRunningStat": "wants the squared mean for the variance of one value; RLlib gives 0 today, and so do we",
        "testSynchronize": "hands a list of actors to FilterManager.synchronize, which takes a set of workers today",
    },
}


def reason_to_leave_out(path: Path, test: str) -> str | None:
    """Why a test is not run; None: it is."""
    for file, reasons in LEFT_OUT.items():
        if path.as_posix().endswith(f"/{file}"):
            return reasons.get(test)
    return None
