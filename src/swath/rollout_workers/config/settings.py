"""The table of settings: what each is unless somebody says otherwise, and what it may be.

`SETTINGS` act. Those of `WITHOUT_EFFECT` do nothing here and are warned of once, those of `REFUSED` raise unless their
value asks for nothing. Any other name is unknown: no setting is ignored silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeAlias, TypeVar, overload

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config import checks
from swath.rollout_workers.config.checks import Check, refuse
from swath.rollout_workers.config.mapping import PoliciesToTrain, everything_to_default, ids_or_function
from swath.rollout_workers.config.model import MODEL_DEFAULTS, model
from swath.rollout_workers.config.policy_spec import PolicySpec, specs
from swath.rollout_workers.config.registry import EnvName

T = TypeVar("T")

Callback: TypeAlias = Callable[..., Any]


class Setting(Generic[T]):
    """A setting that acts: an attribute of a config, checked where it is set.

    Args:
        check: `f(name, value)` gives the value as it is kept, or raises `ValueError`.
        default: what it is in a new config.
        also: other names, old ones among them.
        merged: fluent methods and dicts add to the dict that is there.
    """

    name: str

    def __init__(self, check: Check[T], *, default: Any, also: tuple[str, ...] = (), merged: bool = False) -> None:
        self.check, self.default, self.also, self.merged = check, default, also, merged

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: object, owner: type) -> T: ...
    def __get__(self, config: object | None, owner: type) -> Self | T:
        if config is None:
            return self
        value: T = vars(config)[self.name]
        return value


def merged(present: Any, given: Any) -> Any:
    """Dicts joined, those inside them too; anything else is replaced by what is given."""
    if not isinstance(present, dict) or not isinstance(given, Mapping):
        return given
    return {**present, **{name: merged(present.get(name), value) for name, value in given.items()}}


def _env(name: str, value: object) -> EnvName:
    if not isinstance(value, str) and not callable(value):
        refuse(name, value, "an id, a name from register_env, a class, or a callable that makes the env")
    return value


def _env_config(name: str, value: object) -> dict[str, Any]:
    return {} if value is None else checks.table(name, value)


def _clip(name: str, value: object) -> bool | float:
    return bool(value) if isinstance(value, bool) else checks.positive(name, value)


def _length(name: str, value: object) -> int | str:
    return "auto" if value == "auto" else checks.whole(1)(name, value)


def _filter(name: str, value: object) -> str | Callable[[Any], Any]:
    by_name = checks.word("NoFilter", "MeanStdFilter", "ConcurrentMeanStdFilter")
    return value if callable(value) else by_name(name, value)


def _trainable(name: str, value: object) -> PoliciesToTrain | None:
    try:
        return ids_or_function(name, value)
    except TypeError as wrong:
        raise ValueError(str(wrong)) from None


def _callbacks(name: str, value: object) -> Callback | list[Callback]:
    if isinstance(value, list | tuple) and all(map(callable, value)):
        return list(value)
    if not callable(value):
        refuse(name, value, "a class derived from DefaultCallbacks, a function with keywords, or a list of such")
    return value


def _functions(name: str, value: object) -> dict[str, Callback | list[Callback]]:
    return {
        event: _callbacks(f"{name}[{event!r}]", functions) for event, functions in checks.table(name, value).items()
    }


def _evaluation(name: str, value: object) -> Any:
    if not isinstance(value, Mapping | Settings):
        refuse(name, value, "a dict of settings, AlgorithmConfig.overrides(…), an AlgorithmConfig, or None")
    return dict(value) if isinstance(value, Mapping) else value


class Settings:
    """The settings that act, by the method that sets them."""

    # environment
    env = Setting(checks.optional(_env), default=None)
    env_config = Setting(_env_config, default={}, merged=True)
    observation_space = Setting(checks.optional(checks.space), default=None)
    action_space = Setting(checks.optional(checks.space), default=None)
    clip_rewards = Setting(checks.optional(_clip), default=None)
    normalize_actions = Setting(checks.flag, default=True)
    clip_actions = Setting(checks.flag, default=False)
    # env_runners
    num_env_runners = Setting(checks.whole(), default=0, also=("num_workers", "num_rollout_workers"))
    num_envs_per_env_runner = Setting(checks.whole(1), default=1, also=("num_envs_per_worker",))
    rollout_fragment_length = Setting(_length, default=200)
    batch_mode = Setting(checks.word("truncate_episodes", "complete_episodes"), default="truncate_episodes")
    explore = Setting(checks.flag, default=True)
    observation_filter = Setting(_filter, default="NoFilter")
    create_local_env_runner = Setting(checks.flag, default=True)
    create_env_on_local_worker = Setting(checks.flag, default=False, also=("create_env_on_driver",))
    num_cpus_per_env_runner = Setting(checks.number(), default=1.0, also=("num_cpus_per_worker",))
    num_gpus_per_env_runner = Setting(checks.number(), default=0.0, also=("num_gpus_per_worker",))
    custom_resources_per_env_runner = Setting(checks.amounts, default={}, also=("custom_resources_per_worker",))
    validate_env_runners_after_construction = Setting(
        checks.flag, default=True, also=("validate_workers_after_construction",)
    )
    sample_timeout_s = Setting(checks.wait, default=60.0)
    max_requests_in_flight_per_env_runner = Setting(
        checks.whole(1), default=1, also=("max_requests_in_flight_per_sampler_worker",)
    )
    use_worker_filter_stats = Setting(checks.flag, default=True)
    update_worker_filter_stats = Setting(checks.flag, default=True)
    # multi_agent
    policies = Setting(specs, default={DEFAULT_POLICY_ID: PolicySpec()})
    policy_mapping_fn = Setting(checks.function, default=everything_to_default)
    policies_to_train = Setting(_trainable, default=None)
    count_steps_by = Setting(checks.word("env_steps", "agent_steps"), default="env_steps")
    # training
    gamma = Setting(checks.number(0, 1), default=0.99)
    lr = Setting(checks.number(), default=0.001)
    lr_schedule = Setting(checks.optional(checks.schedule), default=None)
    grad_clip = Setting(checks.optional(checks.positive), default=None)
    grad_clip_by = Setting(checks.word("global_norm", "norm", "value"), default="global_norm")
    train_batch_size = Setting(checks.whole(1), default=32)
    num_epochs = Setting(checks.whole(1), default=1, also=("num_sgd_iter",))
    minibatch_size = Setting(checks.optional(checks.whole()), default=None, also=("sgd_minibatch_size",))
    model = Setting(model, default=MODEL_DEFAULTS, merged=True)
    optimizer = Setting(checks.table, default={}, merged=True)
    lambda_ = Setting(checks.number(0, 1), default=1.0, also=("lambda",))
    use_gae = Setting(checks.flag, default=True)
    use_critic = Setting(checks.flag, default=True)
    clip_param = Setting(checks.number(), default=0.3)
    vf_clip_param = Setting(checks.number(), default=10.0)
    vf_loss_coeff = Setting(checks.number(), default=1.0)
    entropy_coeff = Setting(checks.number(), default=0.0)
    entropy_coeff_schedule = Setting(checks.optional(checks.schedule), default=None)
    use_kl_loss = Setting(checks.flag, default=True)
    kl_coeff = Setting(checks.number(), default=0.2)
    kl_target = Setting(checks.number(), default=0.01)
    ignore_action_bounds = Setting(checks.flag, default=False)
    # callbacks
    callbacks_class = Setting(checks.optional(_callbacks), default=None, also=("callbacks",))
    callback_functions = Setting(_functions, default={}, merged=True)
    # fault_tolerance
    restart_failed_env_runners = Setting(
        checks.flag, default=True, also=("recreate_failed_workers", "recreate_failed_env_runners")
    )
    ignore_env_runner_failures = Setting(checks.flag, default=False, also=("ignore_worker_failures",))
    max_num_env_runner_restarts = Setting(checks.whole(), default=1000, also=("max_num_worker_restarts",))
    delay_between_env_runner_restarts_s = Setting(checks.wait, default=1.0, also=("delay_between_worker_restarts_s",))
    num_consecutive_env_runner_failures_tolerance = Setting(
        checks.whole(), default=100, also=("num_consecutive_worker_failures_tolerance",)
    )
    restart_failed_sub_environments = Setting(checks.flag, default=False)
    env_runner_health_probe_timeout_s = Setting(checks.wait, default=30.0, also=("worker_health_probe_timeout_s",))
    env_runner_restore_timeout_s = Setting(checks.due, default=120.0, also=("worker_restore_timeout_s",))
    env_runner_hang_timeout_s = Setting(checks.optional(checks.due), default=300.0)
    max_num_sub_environment_restarts = Setting(checks.whole(), default=5)
    delay_between_sub_environment_restarts_s = Setting(checks.wait, default=0.1)
    # debugging, python_environment, resources, framework
    seed = Setting(checks.optional(checks.whole()), default=None)
    fake_sampler = Setting(checks.flag, default=False)
    log_level = Setting(checks.word("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"), default="WARN")
    extra_python_environs_for_driver = Setting(checks.table, default={})
    extra_python_environs_for_worker = Setting(checks.table, default={})
    num_gpus = Setting(checks.number(), default=0.0)
    _fake_gpus = Setting(checks.flag, default=False)
    framework_str = Setting(checks.word("torch"), default="torch", also=("framework",))
    # evaluation, reporting, experimental, offline_data
    evaluation_config = Setting(checks.optional(_evaluation), default=None, merged=True)
    in_evaluation = Setting(checks.flag, default=False)
    keep_per_episode_custom_metrics = Setting(checks.flag, default=False)
    _disable_preprocessor_api = Setting(checks.flag, default=False)
    input_ = Setting(checks.word("sampler", "dataset"), default="sampler", also=("input",))


SETTINGS: Mapping[str, Setting[Any]] = {
    name: setting for name, setting in vars(Settings).items() if isinstance(setting, Setting)
}
"""The settings that act, by their attribute's name."""

NAMES: Mapping[str, str] = {each: name for name, setting in SETTINGS.items() for each in (name, *setting.also)}
"""The attribute's name by every name that stands for it."""

_NO_ALGORITHM = "no algorithm reports here: collect_metrics sums up what workers finished since the last call"
_NO_CHECKPOINTS = "nothing writes checkpoints here: worker.get_state() is a plain dict to save"
_ALL_POLICIES = "policies all stay in memory"

WITHOUT_EFFECT: Mapping[str, tuple[object, str]] = {
    "disable_env_checking": (False, "envs are not stepped to check them: give validate_env a check"),
    "preprocessor_pref": (None, "images are not changed: wrap Atari in env_creator"),
    "remote_env_batch_wait_ms": (None, "all sub-envs are awaited"),
    "use_env_runner_state_server": (False, "workers that come back have it built in"),
    "policy_map_capacity": (100, _ALL_POLICIES),
    "policy_states_are_swappable": (False, _ALL_POLICIES),
    "shuffle_batch_per_epoch": (True, "minibatches are always shuffled"),
    "log_sys_usage": (False, "system usage is not logged"),
    "metrics_episode_collection_timeout_s": (None, _NO_ALGORITHM),
    "metrics_num_episodes_for_smoothing": (None, _NO_ALGORITHM),
    "min_time_s_per_iteration": (None, _NO_ALGORITHM),
    "min_train_timesteps_per_iteration": (0, _NO_ALGORITHM),
    "min_sample_timesteps_per_iteration": (0, _NO_ALGORITHM),
    "log_gradients": (False, _NO_ALGORITHM),
    "export_native_model_files": (False, _NO_CHECKPOINTS),
    "checkpoint_trainable_policies_only": (False, _NO_CHECKPOINTS),
}
"""Settings of the field's that do nothing here: the value that asks for nothing, and what is done instead."""

_WHY = {
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

REFUSED: Mapping[str, str] = {name: why for names, why in _WHY.items() for name in names.split()}
"""Settings of the field's that cannot be had here: the way out, by name."""


def require_nothing(name: str, value: object) -> None:
    """Raise `ValueError` for a setting that is refused, unless the value asks for nothing."""
    if value is None or value is False or value == "sync":
        return
    raise ValueError(f"{name}={value!r} is not served: {REFUSED[name]}")
