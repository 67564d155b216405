"""Keywords that fluent methods take beside their own: old names, and settings without effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class OtherNames(TypedDict, total=False):
    """Old names mean the settings that have replaced them; settings without effect are warned of."""

    num_workers: int
    num_rollout_workers: int
    num_envs_per_worker: int
    create_env_on_driver: bool
    num_cpus_per_worker: float
    num_gpus_per_worker: float
    custom_resources_per_worker: Mapping[str, float]
    validate_workers_after_construction: bool
    max_requests_in_flight_per_sampler_worker: int
    num_sgd_iter: int
    sgd_minibatch_size: int | None
    recreate_failed_workers: bool
    recreate_failed_env_runners: bool
    ignore_worker_failures: bool
    max_num_worker_restarts: int
    delay_between_worker_restarts_s: float
    num_consecutive_worker_failures_tolerance: int
    worker_health_probe_timeout_s: float
    worker_restore_timeout_s: float

    disable_env_checking: bool
    preprocessor_pref: str | None
    remote_env_batch_wait_ms: float
    use_env_runner_state_server: bool
    env_runner_state_server_max_concurrency: int
    policy_map_capacity: int
    policy_states_are_swappable: bool
    shuffle_batch_per_epoch: bool
    log_sys_usage: bool
    metrics_episode_collection_timeout_s: float | None
    metrics_num_episodes_for_smoothing: int | None
    min_time_s_per_iteration: float | None
    min_train_timesteps_per_iteration: int
    min_sample_timesteps_per_iteration: int
    log_gradients: bool
    export_native_model_files: bool
    checkpoint_trainable_policies_only: bool
