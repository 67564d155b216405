"""The settings of workers and policies: one table, and a container of their values, both an object and a dict.

A setting of the table acts. A name in `WITHOUT_EFFECT` does nothing and is warned of once; one in `REFUSED` raises
unless its value switches it off. Any other name is kept for policies, with one warning: nothing is ignored silently.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from swath.errors import warn_of_no_effect
from swath.nearest import suggestion
from swath.options import seconds
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config import checks
from swath.rollout_workers.config.checks import MODEL_DEFAULTS, Check
from swath.rollout_workers.config.policy_spec import PolicySpec, copy_nested, map_to_default, read_specs

T = TypeVar("T")


class Option(Generic[T]):
    """A row of the table.

    Args:
        check: `f(name, value)` returns the value to keep, or raises `ValueError`.
        default: its value in a new config.
        alias: another name. Both are accepted with `worker` in the place of `env_runner`, too.
        merged: fluent methods and dicts merge with the present dict.
    """

    name: str

    def __init__(self, check: Check[T], default: Any, *, alias: str | None = None, merged: bool = False) -> None:
        self.check, self.default, self.alias, self.merged = check, default, alias, merged

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "lambda" if name == "lambda_" else name

    def __get__(self, config: Settings | None, owner: type) -> T:
        return self if config is None else config[self.name]  # type: ignore[return-value]


UNCHANGED: Any = object()
"""The default of fluent methods, for a setting that stays unchanged."""

_OVERRIDES: Check[Any] = checks.must_be(
    "a dict of settings, or an AlgorithmConfig", lambda value: isinstance(value, Mapping), copy_nested
)
_UNSERVED = tomllib.loads(resources.files(__package__).joinpath("unserved.toml").read_text())

WITHOUT_EFFECT, REFUSED = (
    {name: str(row["instead"]) for row in _UNSERVED[kind] for name in row["names"].split()}
    for kind in ("without_effect", "refused")
)
"""What is done instead, by name, and the way out, by name. A false value of the former is not warned of; None, False
and "sync" of the latter are accepted."""

STEP_TIMEOUT_S = 300.0
"""As of collectors."""

_FILTERS = ("NoFilter", "MeanStdFilter", "ConcurrentMeanStdFilter")


def merge_dicts(present: Any, changes: Any) -> Any:
    """Merge dicts, also nested ones; replace any other value."""
    if not isinstance(present, dict) or not isinstance(changes, Mapping) or isinstance(changes, Settings):
        return changes
    return {**present, **{name: merge_dicts(present.get(name), value) for name, value in changes.items()}}


class Settings(Mapping[str, Any]):
    """Values of the settings below, and the user's own keys; read and written also as a dict, by any of their names.

    Attributes:
        is_frozen: changes are refused.
    """

    _values: dict[str, Any]
    is_frozen: bool
    algo_class: type | None = None

    # environment
    env = Option(checks.optional(checks.env), default=None)
    env_config = Option(lambda name, value: checks.string_dict(name, {} if value is None else value), {}, merged=True)
    observation_space = Option(checks.optional(checks.space), default=None)
    action_space = Option(checks.optional(checks.space), default=None)
    clip_rewards = Option(checks.clip, default=None)
    normalize_actions = Option(checks.flag, default=True)
    clip_actions = Option(checks.flag, default=False)
    # env_runners
    num_env_runners = Option(checks.integer(), default=0, alias="num_rollout_workers")
    num_envs_per_env_runner = Option(checks.integer(1), default=1)
    env_processes = Option(checks.optional(checks.integer(1)), default=None)
    step_timeout_s = Option(checks.positive_seconds, default=STEP_TIMEOUT_S)
    rollout_fragment_length = Option(checks.optional(checks.integer(1), lambda value: value == "auto"), default=200)
    batch_mode = Option(checks.choice("truncate_episodes", "complete_episodes"), default="truncate_episodes")
    explore = Option(checks.flag, default=True)
    observation_filter = Option(checks.optional(checks.choice(*_FILTERS), callable), default="NoFilter")
    create_local_env_runner = Option(checks.flag, default=True)
    create_env_on_local_worker = Option(checks.flag, default=False, alias="create_env_on_driver")
    num_cpus_per_env_runner = Option(checks.number(), default=1.0)
    num_gpus_per_env_runner = Option(checks.number(), default=0.0)
    custom_resources_per_env_runner = Option(checks.dict_of(checks.number()), default={})
    validate_env_runners_after_construction = Option(checks.flag, default=True)
    sample_timeout_s = Option(seconds, default=60.0)
    max_requests_in_flight_per_env_runner = Option(
        checks.integer(1), 1, alias="max_requests_in_flight_per_sampler_worker"
    )
    use_worker_filter_stats = Option(checks.flag, default=True)
    update_worker_filter_stats = Option(checks.flag, default=True)
    # multi_agent
    policies = Option(read_specs, default={DEFAULT_POLICY_ID: PolicySpec()})
    policy_mapping_fn = Option(checks.function, default=map_to_default)
    policies_to_train = Option(checks.optional(checks.learners), default=None)
    count_steps_by = Option(checks.choice("env_steps", "agent_steps"), default="env_steps")
    # training
    gamma = Option(checks.number(0, 1), default=0.99)
    lr = Option(checks.number(), default=0.001)
    lr_schedule = Option(checks.optional(checks.schedule), default=None)
    grad_clip = Option(checks.optional(checks.positive), default=None)
    grad_clip_by = Option(checks.choice("global_norm", "norm", "value"), default="global_norm")
    train_batch_size = Option(checks.integer(1), default=32)
    num_epochs = Option(checks.integer(1), default=1, alias="num_sgd_iter")
    minibatch_size = Option(checks.optional(checks.integer()), default=None, alias="sgd_minibatch_size")
    shuffle_batch_per_epoch = Option(checks.must_be("True: minibatches are always shuffled", bool, bool), default=True)
    model = Option(checks.model, default=MODEL_DEFAULTS, merged=True)
    optimizer = Option(checks.string_dict, default={}, merged=True)
    lambda_ = Option(checks.number(0, 1), default=1.0, alias="lambda_")
    use_gae = Option(checks.flag, default=True)
    use_critic = Option(checks.flag, default=True)
    clip_param = Option(checks.number(), default=0.3)
    vf_clip_param = Option(checks.number(), default=10.0)
    vf_loss_coeff = Option(checks.number(), default=1.0)
    entropy_coeff = Option(checks.number(), default=0.0)
    entropy_coeff_schedule = Option(checks.optional(checks.schedule), default=None)
    use_kl_loss = Option(checks.flag, default=True)
    kl_coeff = Option(checks.number(), default=0.2)
    kl_target = Option(checks.number(), default=0.01)
    ignore_action_bounds = Option(checks.flag, default=False)
    # callbacks
    callbacks_class = Option(checks.optional(checks.callbacks), default=None, alias="callbacks")
    callback_functions = Option(checks.dict_of(checks.callbacks), default={}, merged=True)
    # fault_tolerance
    restart_failed_env_runners = Option(checks.flag, default=True, alias="recreate_failed_env_runners")
    ignore_env_runner_failures = Option(checks.flag, default=False)
    max_num_env_runner_restarts = Option(checks.integer(), default=1000)
    delay_between_env_runner_restarts_s = Option(seconds, default=1.0)
    num_consecutive_env_runner_failures_tolerance = Option(checks.integer(), default=100)
    restart_failed_sub_environments = Option(checks.flag, default=False)
    env_runner_health_probe_timeout_s = Option(seconds, default=30.0)
    env_runner_restore_timeout_s = Option(checks.positive_seconds, default=120.0)
    env_runner_hang_timeout_s = Option(checks.optional(checks.positive_seconds), default=300.0)
    max_num_sub_environment_restarts = Option(checks.integer(), default=5)
    delay_between_sub_environment_restarts_s = Option(seconds, default=0.1)
    # debugging, python_environment, resources, framework
    seed = Option(checks.optional(checks.integer()), default=None)
    fake_sampler = Option(checks.flag, default=False)
    log_level = Option(checks.choice("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"), default="WARN")
    extra_python_environs_for_driver = Option(checks.string_dict, default={})
    extra_python_environs_for_worker = Option(checks.string_dict, default={})
    num_gpus = Option(checks.number(), default=0.0)
    _fake_gpus = Option(checks.flag, default=False)
    framework_str = Option(checks.choice("torch"), default="torch", alias="framework")
    # evaluation, reporting, experimental, offline_data
    evaluation_config = Option(checks.optional(_OVERRIDES), default=None, merged=True)
    in_evaluation = Option(checks.flag, default=False)
    keep_per_episode_custom_metrics = Option(checks.flag, default=False)
    _disable_preprocessor_api = Option(checks.flag, default=False)
    input_ = Option(checks.choice("sampler", "dataset"), default="sampler", alias="input")

    def __init__(self, algo_class: type | None = None) -> None:
        values = {name: copy_nested(setting.default) for name, setting in SETTINGS.items()}
        vars(self).update(_values=values, is_frozen=False, algo_class=algo_class)

    if not TYPE_CHECKING:  # a type checker must see which settings are missing

        def __setattr__(self, name: str, value: Any) -> None:
            self.set_all({name: value})

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or "_values" not in vars(self):
                raise AttributeError(name)
            try:
                return self[name]
            except KeyError as error:
                raise AttributeError(*error.args) from None

    def freeze(self) -> None:
        """Refuse changes from now on; an unfrozen copy accepts them."""
        vars(self)["is_frozen"] = True

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """Return a copy that shares no container with this one; classes, functions and spaces are shared.

        Args:
            copy_frozen: whether the copy refuses changes; None: as this one does.
        """
        clone = object.__new__(type(self))
        frozen = self.is_frozen if copy_frozen is None else copy_frozen
        vars(clone).update(copy_nested(vars(self)), is_frozen=frozen)
        return clone

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Build a config from a dict; keys that are no settings are kept for policies, and warned of once.

        Raises:
            ValueError: a value out of range, or a setting that is refused.
        """
        return cls().update_from_dict(config_dict)

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Set the entries of a dict, all or nothing.

        Raises:
            ValueError: a value out of range, or a setting that is refused.
            AttributeError: the config is frozen.
        """
        settings = {**config_dict, **config_dict.get("multiagent", {})}
        settings.pop("multiagent", None)
        return self.set_all(settings, merge=True)

    def to_dict(self) -> dict[str, Any]:
        """Return copies of the settings by attribute name (`lambda_` is `"lambda"`), and of the user's own keys."""
        values: dict[str, Any] = copy_nested(self._values)
        return values

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """Return checked settings of a policy that differ from the worker's, for `PolicySpec(config=…)`.

        Raises:
            KeyError: a name that is no setting; the message says which is near.
            ValueError: a value out of range, or a setting that is refused.
        """
        for name in settings:
            if name not in NAMES:
                raise KeyError(f"{name!r} is no setting of {cls.__name__}{suggestion(name, NAMES)}")
        cls().set_all(settings)
        return {NAMES[name]: value for name, value in settings.items()}

    def pop(self, key: str, *default: Any) -> Any:
        """Return the value; a user's own key is removed, a setting stays, since every config has it.

        Raises:
            KeyError: there is none, and no default.
        """
        if key in self._values and key not in SETTINGS:
            self._require_thawed(key)
            return self._values.pop(key)
        return self.get(key, *default) if default else self[key]

    def __getitem__(self, key: str) -> Any:
        name = NAMES.get(key, key)
        if name in self._values or key in NAMES:
            return self._values.get(name)
        raise KeyError(f"{key!r} is no setting of {type(self).__name__}{suggestion(key, NAMES)}")

    def __setitem__(self, key: str, value: Any) -> None:
        self.update_from_dict({key: value})

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    __eq__, __hash__ = object.__eq__, object.__hash__

    def set_all(self, values: Mapping[str, Any], *, merge: bool = False) -> Self:
        """Set settings under any of their names, all or none; other names become the user's own keys.

        Args:
            values: by name.
            merge: merge with the present dicts.
        """
        checked: dict[str, Any] = {}
        for name, value in values.items():
            self._require_thawed(name)
            if name in REFUSED and value not in (None, False, "sync"):
                raise ValueError(f"{name}={value!r} is not served: {REFUSED[name]}")
            key, result = NAMES.get(name, name), value
            if (option := SETTINGS.get(key)) is not None:
                result = option.check(key, merge_dicts(self._values[key], value) if merge and option.merged else value)
            if key in checked and checked[key] != result:
                raise ValueError(f"{key} and {name}={value!r} are one setting; give one")
            checked[key] = result
        self._values.update(checked)
        for name in checked.keys() - SETTINGS.keys():
            unknown = f"it is no setting{suggestion(name, NAMES)}; kept for policies as config[{name!r}]"
            if name not in NAMES or (name in WITHOUT_EFFECT and checked[name]):
                warn_of_no_effect(name, WITHOUT_EFFECT.get(name, unknown))
        return self

    def _require_thawed(self, name: str) -> None:
        if self.is_frozen:
            message = f"Cannot set attribute {name!r} of an already frozen {type(self).__name__}"
            raise AttributeError(f"{message}: change a copy(copy_frozen=False) of it")


SETTINGS: Mapping[str, Option[Any]] = {row.name: row for row in vars(Settings).values() if isinstance(row, Option)}
"""The settings that act, by their names in dicts: the attribute's name, except `lambda_`."""

NAMES: Mapping[str, str] = {name: name for name in (*WITHOUT_EFFECT, *REFUSED)} | {
    other_name.replace("env_runner", part): name
    for name, option in SETTINGS.items()
    for other_name in (name, option.alias or name)
    for part in ("env_runner", "worker")
}
"""The setting by each of its names: older names have `worker` in the place of `env_runner`."""
