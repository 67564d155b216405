"""Settings of RLlib's that do nothing here, or that cannot be had: what is done instead."""

from __future__ import annotations

_WITHOUT_EFFECT = {
    "disable_env_checking": "envs are not stepped to check them: give validate_env a check",
    "preprocessor_pref": "images are not changed: wrap Atari in env_creator",
    "remote_env_batch_wait_ms": "all sub-envs are awaited",
    "use_env_runner_state_server": "workers that come back have it built in",
    "policy_map_capacity policy_states_are_swappable": "policies all stay in memory",
    "log_sys_usage": "system usage is not logged",
    "metrics_episode_collection_timeout_s metrics_num_episodes_for_smoothing min_time_s_per_iteration "
    "min_train_timesteps_per_iteration min_sample_timesteps_per_iteration log_gradients": "no algorithm reports "
    "here: collect_metrics sums up what workers finished since the last call",
    "export_native_model_files checkpoint_trainable_policies_only": "nothing writes checkpoints here: "
    "worker.get_state() is a plain dict to save",
}
_REFUSED = {
    "compress_observations": "columns are not compressed; store batches with numpy.savez_compressed",
    "remote_worker_envs gym_env_vectorize_mode": "sub-envs live in their worker's process; take more workers, or "
    "return gymnasium's AsyncVectorEnv from env_creator",
    "render_env": "swath.Evaluator records video",
    "sampler_perf_stats_ema_coef": "perf_stats are means over all steps; average those of several calls yourself",
    "exploration_config": "policies explore by themselves: explore=True or False, and compute_actions of your class",
    "sample_collector": "rows are collected in one way; change them in callbacks: on_postprocess_trajectory",
    "observation_fn": "change observations in the env, or rows in callbacks: on_postprocess_trajectory",
    "postprocess_inputs": "offline rows are handed out without post-processing; call postprocess_trajectory yourself",
    "output": "nothing is written to files; save batches yourself, or use swath collect",
    "custom_vector_env": "return a VectorEnv from env_creator",
    "env_task_fn": "set the task in a callback: on_episode_created",
    "horizon soft_horizon no_done_at_end": "wrap the env in gymnasium.wrappers.TimeLimit in env_creator",
    "env_to_module_connector module_to_env_connector learner_connector enable_connectors "
    "add_default_connectors_to_env_to_module_pipeline add_default_connectors_to_module_to_env_pipeline "
    "add_default_connectors_to_learner_pipeline": "there are no connectors; use callbacks, filters, or wrap the env",
    "rl_module rl_module_spec model_config": "there are no RLModules; give a policy class, and its network by model",
    "learners num_learners learner_class": "there are no learners; worker.learn_on_batch updates policies in place",
    "enable_rl_module_and_learner enable_env_runner_and_connector_v2": "workers with policies are the old API stack; "
    "give False",
    "evaluation_interval evaluation_duration evaluation_num_env_runners evaluation_num_workers "
    "custom_evaluation_function": "evaluate with swath.Evaluator, or with a WorkerSet in_evaluation=True",
}

WITHOUT_EFFECT = {name: why for names, why in _WITHOUT_EFFECT.items() for name in names.split()}
"""What is done instead, by name; a value that is false asks for nothing."""

REFUSED = {name: why for names, why in _REFUSED.items() for name in names.split()}
"""The way out, by name; None, False and "sync" ask for nothing."""
