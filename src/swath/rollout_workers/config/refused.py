"""Settings of the field's that cannot be had here: why, and what to do instead."""

from __future__ import annotations

from swath.rollout_workers.config.settings import Refused

_TIME_LIMIT = "episodes end as the env says; wrap it in gymnasium.wrappers.TimeLimit in env_creator"
_CONNECTORS = "there are no connectors; use callbacks, filters, or wrap the env in env_creator"
_MODULES = "there are no RLModules; give a policy class, and its network by model or TorchPolicy.make_model"
_LEARNERS = "there are no learners; worker.learn_on_batch and sample_and_learn update policies in place"
_OFFLINE = "nothing is read from or written to files; give dataset_shards with input_='dataset', or save batches"
_EVALUATION = "there are no algorithms that evaluate; evaluate with swath.Evaluator, or a WorkerSet in_evaluation=True"
_ALGORITHMS = "there are no algorithms here that would call it or use it"
_RUNNERS = "there are no env runners of the new API stack; a RolloutWorker samples"
_TORCH = "policies are plain torch modules; prepare them in TorchPolicy.make_model or make_optimizer"

_WHY: dict[str, dict[str, object]] = {
    "policies explore by themselves: explore=True or False, and compute_actions of a class of your own": {
        "exploration_config": {}
    },
    "rows are collected by array functions, and in one way": {"sample_collector": None},
    "change observations in the env, or rows in callbacks: on_postprocess_trajectory": {"observation_fn": None},
    "offline rows are handed out without post-processing": {"postprocess_inputs": False},
    "return a VectorEnv from env_creator": {"custom_vector_env": None},
    "set the task in a callback: on_episode_created": {"env_task_fn": None},
    "an env is Atari if env_creator says so: nothing is done for Atari alone": {"is_atari": None},
    "masks are read by the policy's own model, where its observations have them": {"action_mask_key": "action_mask"},
    "workers are placed one by one, as custom_resources_per_env_runner says": {
        "placement_strategy": "PACK",
        "num_cpus_for_main_process": 1,
        "custom_resources_for_main_process": {},
        "local_gpu_idx": 0,
    },
    "override settings per policy with PolicySpec(config=AlgorithmConfig.overrides(…))": {
        "algorithm_config_overrides_per_module": {},
    },
    _TIME_LIMIT: {"horizon": None, "soft_horizon": False, "no_done_at_end": False},
    _CONNECTORS: {
        "env_to_module_connector": None,
        "module_to_env_connector": None,
        "learner_connector": None,
        "add_default_connectors_to_env_to_module_pipeline": True,
        "add_default_connectors_to_module_to_env_pipeline": True,
        "add_default_connectors_to_learner_pipeline": True,
        "enable_connectors": False,
    },
    "workers with policies are the old API stack; give False": {
        "enable_rl_module_and_learner": False,
        "enable_env_runner_and_connector_v2": False,
    },
    _RUNNERS: {
        "env_runner_cls": None,
        "episode_lookback_horizon": 1,
        "merge_env_runner_states": "training_only",
        "broadcast_env_runner_states": True,
        "episodes_to_numpy": True,
    },
    _MODULES: {
        "rl_module": None,
        "rl_module_spec": None,
        "model_config": {},
        "model_config_dict": None,
        "_enable_rl_module_api": False,
    },
    _LEARNERS: {
        "learners": None,
        "num_learners": 0,
        "num_cpus_per_learner": "auto",
        "num_gpus_per_learner": 0,
        "custom_resources_per_learner": {},
        "num_aggregator_actors_per_learner": 0,
        "max_requests_in_flight_per_aggregator_actor": 3,
        "max_requests_in_flight_per_learner": 3,
        "learner_class": None,
        "learner_config_dict": {},
        "train_batch_size_per_learner": None,
        "replay_mode": None,
    },
    _TORCH: {
        "torch_compile_learner": False,
        "torch_compile_worker": False,
        "torch_ddp_kwargs": {},
        "torch_skip_nan_gradients": False,
        "_torch_grad_scaler_class": None,
        "_torch_lr_scheduler_classes": None,
        "eager_tracing": True,
        "tf_session_args": None,
        "local_tf_session_args": None,
        "enable_tf1_exec_eagerly": False,
    },
    "actions are flattened for no policy": {"_disable_action_flattening": False},
    "policies are not asked for a loss of zeros": {"_disable_initialize_loss_from_dummy_batch": False},
    _OFFLINE: {
        "offline_data_class": None,
        "input_config": {},
        "input_read_method": "read_parquet",
        "input_read_episodes": False,
        "input_read_sample_batches": False,
        "actions_in_input_normalized": False,
        "shuffle_buffer_size": 0,
        "output": None,
        "output_config": {},
        "output_compress_columns": ["obs", "new_obs"],
        "output_max_file_size": 64 * 2**20,
        "offline_sampling": False,
    },
    _EVALUATION: {
        "evaluation_interval": None,
        "evaluation_duration": 10,
        "evaluation_duration_unit": "episodes",
        "evaluation_sample_timeout_s": 120.0,
        "evaluation_parallel_to_training": False,
        "evaluation_force_reset_envs_before_iteration": True,
        "evaluation_num_env_runners": 0,
        "evaluation_num_workers": 0,
        "custom_evaluation_function": None,
        "always_attach_evaluation_results": None,
        "off_policy_estimation_methods": {},
        "ope_split_batch_by_episode": True,
    },
    _ALGORITHMS: {
        f"callbacks_on_{event}": None
        for event in (
            "algorithm_init",
            "train_result",
            "evaluate_start",
            "evaluate_end",
            "evaluate_offline_start",
            "evaluate_offline_end",
            "offline_eval_runners_recreated",
            "checkpoint_loaded",
        )
    },
    "use on_sub_environment_created, which gets the env and its context": {"callbacks_on_environment_created": None},
}
"""Why settings are refused: under each reason their names, and the value of each that asks for nothing."""


def _row(name: str, why: str, fine: object) -> Refused:
    row = Refused(name, why, fine=(fine,))
    if name.startswith("callbacks_"):
        row.also = (name.removeprefix("callbacks_"),)
    return row


REFUSED = {name: _row(name, why, fine) for why, names in _WHY.items() for name, fine in names.items()}
"""A row per setting that is refused."""
