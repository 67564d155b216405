"""Settings, row by row: each acts, is warned of once, or is refused by name; there is no fourth way.

`ACTS` says of each setting that acts: by which method it is set, what it is by default, values it takes, values it
refuses, and where its effect is to be seen once workers are there.
"""

import inspect
from collections.abc import Callable
from math import inf, nan
from typing import Any, NamedTuple

import gymnasium as gym
import pytest

from swath.errors import NoEffectWarning
from swath.rollout_workers import PPOTorchPolicy, RolloutWorker
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.checks import MODEL_DEFAULTS
from swath.rollout_workers.config.policy_spec import PolicySpec, everything_to_default
from swath.rollout_workers.config.settings import REFUSED, SETTINGS, WITHOUT_EFFECT
from swath.testing.envs import MockEnv


class Acts(NamedTuple):
    method: str
    default: Any
    good: list[Any]
    bad: list[Any]
    effect: str


def maker(context):
    raise NotImplementedError


def some(**_):
    raise NotImplementedError


class Some:
    pass


BOX = gym.spaces.Box(-1, 1, (2,))
FLAGS = ["yes", 1, None]
SECONDS = [-1, "soon", inf, nan, None]
UNIT = [-0.1, 1.1, "half", True, None, nan]
AT_LEAST_0 = [-0.1, "some", True, None, nan]
DELAY = [0.0, 2.5]
ACTS = {
    "env": Acts("environment", None, ["CartPole-v1", maker, Some], [3, BOX], "WorkerSet() makes these envs"),
    "env_config": Acts("environment", {}, [{"a": 1}], [3, {1: 2}, "a"], "EnvContext's content"),
    "observation_space": Acts("environment", None, [BOX], ["Box", 3], "policies without env"),
    "action_space": Acts("environment", None, [BOX], ["Box", 3], "policies without env"),
    "clip_rewards": Acts("environment", None, [True, False, 2.5], [-1, 0, "sign", nan], "rewards of batches"),
    "normalize_actions": Acts("environment", True, [False], FLAGS, "actions that reach the env"),
    "clip_actions": Acts("environment", False, [True], FLAGS, "actions that reach the env"),
    "num_env_runners": Acts("env_runners", 0, [3], [-1, 1.5, "2", True, None], "workers of a set"),
    "num_envs_per_env_runner": Acts("env_runners", 1, [4], [0, 1.5, None], "sub-envs of a worker"),
    "rollout_fragment_length": Acts("env_runners", 200, [10, "auto"], [0, "long", 1.5, None], "rows of a batch"),
    "batch_mode": Acts("env_runners", "truncate_episodes", ["complete_episodes"], ["whole", None], "whole episodes"),
    "explore": Acts("env_runners", True, [False], FLAGS, "actions are the mode"),
    "observation_filter": Acts(
        "env_runners", "NoFilter", ["MeanStdFilter", "ConcurrentMeanStdFilter", some], ["Mean", None, 3], "observations"
    ),
    "create_local_env_runner": Acts("env_runners", True, [False], FLAGS, "WorkerSet.local_worker()"),
    "create_env_on_local_worker": Acts("env_runners", False, [True], FLAGS, "env of worker 0 in a set"),
    "num_cpus_per_env_runner": Acts("env_runners", 1.0, [0.0, 2.0], AT_LEAST_0, "torch threads, Ray's CPUs"),
    "num_gpus_per_env_runner": Acts("env_runners", 0.0, [0.5], AT_LEAST_0, "device, Ray's GPUs"),
    "custom_resources_per_env_runner": Acts("env_runners", {}, [{"tpu": 1.0}], [{"tpu": -1}, {1: 1}, 3], "Ray places"),
    "validate_env_runners_after_construction": Acts("env_runners", True, [False], FLAGS, "the set waits for all"),
    "sample_timeout_s": Acts("env_runners", 60.0, DELAY, SECONDS, "WorkerLate"),
    "max_requests_in_flight_per_env_runner": Acts("env_runners", 1, [2], [0, 1.5, None], "foreach_worker_async"),
    "use_worker_filter_stats": Acts("env_runners", True, [False], FLAGS, "sync_filters"),
    "update_worker_filter_stats": Acts("env_runners", True, [False], FLAGS, "sync_filters"),
    "policies": Acts(
        "multi_agent",
        {"default_policy": PolicySpec()},
        [{"a": PolicySpec(config={"lr": 0.1})}],
        [{}, [], 3, "a", {1: PolicySpec()}, {"a": 3}, {"a": (1, 2, 3, 4, 5)}, {""}, None],
        "policy_map",
    ),
    "policy_mapping_fn": Acts("multi_agent", everything_to_default, [some], [None, "a", 3], "policy_for(agent)"),
    "policies_to_train": Acts("multi_agent", None, [["a"], {"a"}, ("a",), some], ["a", 3, [3]], "what learns"),
    "count_steps_by": Acts("multi_agent", "env_steps", ["agent_steps"], ["steps", None], "when a call ends"),
    "gamma": Acts("training", 0.99, [0.0, 1.0], UNIT, "advantages"),
    "lr": Acts("training", 0.001, [0.0, 1.0], [-1, "x", None, [[0, 1.0]]], "the optimiser"),
    "lr_schedule": Acts(
        "training",
        None,
        [[[0.0, 0.1], [100.0, 0.01]]],
        [[[1, 0.1]], [[0, 1], [0, 2]], [], 3, "ab", [3], [[0, 1, 2]]],
        "cur_lr",
    ),
    "grad_clip": Acts("training", None, [0.5], [0, -1, "x"], "gradients"),
    "grad_clip_by": Acts("training", "global_norm", ["norm", "value"], ["l1", None], "gradients"),
    "train_batch_size": Acts("training", 32, [100], [0, 1.5, None], 'rollout_fragment_length="auto"'),
    "num_epochs": Acts("training", 1, [3], [0, 1.5, None], "sample_and_learn"),
    "minibatch_size": Acts("training", None, [0, 16], [-1, 1.5], "sample_and_learn"),
    "shuffle_batch_per_epoch": Acts("training", True, [True], [False, None], "minibatches are always shuffled"),
    "model": Acts(
        "training",
        MODEL_DEFAULTS,
        [{**MODEL_DEFAULTS, "fcnet_hiddens": [8]}],
        [
            3,
            {"fcnet_hiddens": 8},
            {"fcnet_hiddens": [0]},
            {"fcnet_activation": "gelu"},
            {"fcnet_activation": [1]},
            {"max_seq_len": 0},
            None,
        ],
        "the default network",
    ),
    "optimizer": Acts("training", {}, [{"eps": 1e-5}], [3, None, {1: 2}], "Adam"),
    "lambda_": Acts("training", 1.0, [0.95], UNIT, "advantages"),
    "use_gae": Acts("training", True, [False], FLAGS, "advantages"),
    "use_critic": Acts("training", True, [False], FLAGS, "advantages"),
    "clip_param": Acts("training", 0.3, [0.1, inf], AT_LEAST_0, "PPO's loss"),
    "vf_clip_param": Acts("training", 10.0, [1.0, inf], AT_LEAST_0, "PPO's loss"),
    "vf_loss_coeff": Acts("training", 1.0, [0.5], AT_LEAST_0, "PPO's loss"),
    "entropy_coeff": Acts("training", 0.0, [0.01], AT_LEAST_0, "PPO's loss"),
    "entropy_coeff_schedule": Acts("training", None, [[[0.0, 0.1], [10.0, 0.0]]], [[[5, 1]], 3], "entropy_coeff"),
    "use_kl_loss": Acts("training", True, [False], FLAGS, "PPO's loss"),
    "kl_coeff": Acts("training", 0.2, [0.0], AT_LEAST_0, "cur_kl_coeff"),
    "kl_target": Acts("training", 0.01, [0.1], AT_LEAST_0, "update_kl"),
    "ignore_action_bounds": Acts("training", False, [True], FLAGS, "actions of RandomPolicy"),
    "callbacks_class": Acts("callbacks", None, [Some, [Some, Some]], ["Some", 3, [3]], "they are called"),
    "restart_failed_env_runners": Acts("fault_tolerance", True, [False], FLAGS, "a next life"),
    "ignore_env_runner_failures": Acts("fault_tolerance", False, [True], FLAGS, "left out"),
    "max_num_env_runner_restarts": Acts("fault_tolerance", 1000, [0, 3], [-1, 1.5, None], "lives of a worker"),
    "delay_between_env_runner_restarts_s": Acts("fault_tolerance", 1.0, DELAY, SECONDS, "Restarts.backoff_s"),
    "num_consecutive_env_runner_failures_tolerance": Acts("fault_tolerance", 100, [0], [-1, None], "FleetFailed"),
    "restart_failed_sub_environments": Acts("fault_tolerance", False, [True], FLAGS, "a sub-env is rebuilt"),
    "env_runner_health_probe_timeout_s": Acts("fault_tolerance", 30.0, DELAY, SECONDS, "probe_unhealthy_workers"),
    "env_runner_restore_timeout_s": Acts("fault_tolerance", 120.0, [2.5], [*SECONDS, 0], "start-up deadline"),
    "env_runner_hang_timeout_s": Acts("fault_tolerance", 300.0, [2.5, None], [-1, 0, inf, "x"], "a hang is a death"),
    "max_num_sub_environment_restarts": Acts("fault_tolerance", 5, [0], [-1, None], "failures in a row"),
    "delay_between_sub_environment_restarts_s": Acts("fault_tolerance", 0.1, DELAY, SECONDS, "delay of a rebuild"),
    "seed": Acts("debugging", None, [0, 7], [-1, 1.5, "x", True], "env resets, weights, actions"),
    "fake_sampler": Acts("debugging", False, [True], FLAGS, "one batch for ever"),
    "log_level": Acts("debugging", "WARN", ["DEBUG"], ["LOUD", 10, None], "logger swath"),
    "extra_python_environs_for_driver": Acts("python_environment", {}, [{"A": "1"}], [3, {1: "1"}], "os.environ"),
    "extra_python_environs_for_worker": Acts("python_environment", {}, [{"A": 1}], [3, None], "os.environ"),
    "num_gpus": Acts("resources", 0.0, [1.0], AT_LEAST_0, "device of worker 0"),
    "_fake_gpus": Acts("resources", False, [True], FLAGS, "device of worker 0"),
    "framework_str": Acts("framework", "torch", ["torch"], ["tf", "tf2", None], "there is only torch"),
    "evaluation_config": Acts("evaluation", None, [{"explore": False}], [3, "x"], "get_evaluation_config_object"),
    "in_evaluation": Acts("evaluation", False, [True], FLAGS, "seeds"),
    "keep_per_episode_custom_metrics": Acts("reporting", False, [True], FLAGS, "collect_metrics"),
    "_disable_preprocessor_api": Acts("experimental", False, [True], FLAGS, "observations of policies"),
    "input_": Acts("offline_data", "sampler", ["dataset"], ["/tmp/batches", None, some], "sample()"),
}

NO_EFFECT = (
    "disable_env_checking preprocessor_pref remote_env_batch_wait_ms use_env_runner_state_server policy_map_capacity "
    "policy_states_are_swappable log_sys_usage metrics_episode_collection_timeout_s log_gradients "
    "metrics_num_episodes_for_smoothing min_time_s_per_iteration min_train_timesteps_per_iteration "
    "min_sample_timesteps_per_iteration export_native_model_files checkpoint_trainable_policies_only"
)

OLD_NAMES = {
    "num_rollout_workers": ("num_env_runners", 3),
    "num_workers": ("num_env_runners", 3),
    "num_envs_per_worker": ("num_envs_per_env_runner", 3),
    "recreate_failed_workers": ("restart_failed_env_runners", False),
    "recreate_failed_env_runners": ("restart_failed_env_runners", False),
    "ignore_worker_failures": ("ignore_env_runner_failures", True),
    "max_num_worker_restarts": ("max_num_env_runner_restarts", 3),
    "delay_between_worker_restarts_s": ("delay_between_env_runner_restarts_s", 3.0),
    "worker_restore_timeout_s": ("env_runner_restore_timeout_s", 3.0),
    "worker_health_probe_timeout_s": ("env_runner_health_probe_timeout_s", 3.0),
    "num_consecutive_worker_failures_tolerance": ("num_consecutive_env_runner_failures_tolerance", 3),
    "num_cpus_per_worker": ("num_cpus_per_env_runner", 3.0),
    "num_gpus_per_worker": ("num_gpus_per_env_runner", 3.0),
    "custom_resources_per_worker": ("custom_resources_per_env_runner", {"a": 3.0}),
    "validate_workers_after_construction": ("validate_env_runners_after_construction", False),
    "max_requests_in_flight_per_sampler_worker": ("max_requests_in_flight_per_env_runner", 3),
    "create_env_on_driver": ("create_env_on_local_worker", True),
    "num_sgd_iter": ("num_epochs", 3),
    "sgd_minibatch_size": ("minibatch_size", 3),
}


def keyword(name: str) -> str:
    """What a fluent method calls a setting."""
    return {"framework_str": "framework"}.get(name, name)


def given(acts_or_method: Acts | str, name: str, value: object) -> AlgorithmConfig:
    method = acts_or_method if isinstance(acts_or_method, str) else acts_or_method.method
    return getattr(AlgorithmConfig(), method)(**{keyword(name): value})


@pytest.mark.parametrize("name", ACTS)
def test_a_setting_has_the_default_of_the_table_and_takes_it(name):
    config, acts = AlgorithmConfig(), ACTS[name]
    assert getattr(config, name) == config[name] == acts.default
    assert type(getattr(config, name)) is type(acts.default)
    assert getattr(given(acts, name, acts.default), name) == acts.default


@pytest.mark.parametrize("name", ACTS)
def test_a_setting_is_kept_however_it_is_given(name):
    for value in ACTS[name].good:
        fluent, attribute = given(ACTS[name], name, value), AlgorithmConfig()
        setattr(attribute, name, value)
        kept = getattr(fluent, name)
        assert kept == getattr(value, "value", value)
        assert getattr(attribute, name) == AlgorithmConfig.from_dict({name: value})[name] == kept
        assert AlgorithmConfig.from_dict(fluent.to_dict())[name] == kept


WAYS: list[Callable[[str, object], object]] = [
    lambda name, value: given(ACTS[name], name, value),
    lambda name, value: setattr(AlgorithmConfig(), name, value),
    lambda name, value: AlgorithmConfig.from_dict({name: value}),
    lambda name, value: AlgorithmConfig.overrides(**{name: value}),
]


@pytest.mark.parametrize("name", ACTS)
def test_a_value_out_of_range_is_refused_at_once_by_name(name):
    for value in ACTS[name].bad:
        for way in WAYS:
            with pytest.raises(ValueError, match=rf"{name}.* must "):
                way(name, value)


def test_these_tables_have_every_setting():
    assert {*ACTS, "callback_functions"} == set(SETTINGS)
    assert set(NO_EFFECT.split()) == set(WITHOUT_EFFECT)


@pytest.mark.parametrize("name", ACTS)
def test_the_method_that_sets_a_setting_says_what_it_is(name):
    method = getattr(AlgorithmConfig, ACTS[name].method)
    assert f"`{keyword(name)}`" in method.__doc__ or len(inspect.signature(method).parameters) == 3


def test_the_first_argument_may_be_given_by_position():
    assert AlgorithmConfig().environment("CartPole-v1").framework("torch").api_stack(False, False).env == "CartPole-v1"


@pytest.mark.parametrize("name", NO_EFFECT.split())
def test_a_setting_without_effect_is_warned_of_once_and_kept(name, recwarn):
    config = AlgorithmConfig().checkpointing(**{name: None})
    assert config[name] is AlgorithmConfig()[name] is None
    assert not recwarn.list
    config.reporting(**{name: 5}).update_from_dict({name: 5})
    assert [(w.category, str(w.message).startswith(f"{name} has no effect")) for w in recwarn] == [
        (NoEffectWarning, True)
    ]
    assert getattr(config, name) == config[name] == 5


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_cannot_be_had_is_refused_by_name_however_it_is_given(name):
    for give in (
        lambda: AlgorithmConfig().env_runners(**{name: Some()}),
        lambda: AlgorithmConfig.from_dict({name: Some()}),
    ):
        with pytest.raises(ValueError, match=rf"^{name}=<.*Some.*> is not served: \w"):
            give()
    assert AlgorithmConfig.from_dict({name: None})[name] is None


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_means_the_setting_that_has_replaced_it(old):
    name, value = OLD_NAMES[old]
    config = AlgorithmConfig().rollouts(**{old: value})
    assert config[name] == config[old] == getattr(config, old) == value != AlgorithmConfig()[name]
    assert config.to_dict() == AlgorithmConfig.from_dict({name: value}).to_dict()
    setattr(config, old, AlgorithmConfig()[name])
    assert config[name] == AlgorithmConfig()[name]


def test_two_values_for_one_setting_are_refused():
    with pytest.raises(ValueError, match="num_env_runners and num_workers=3 are one setting"):
        AlgorithmConfig().env_runners(num_env_runners=4, num_workers=3)
    assert AlgorithmConfig().env_runners(num_env_runners=3, num_workers=3).num_env_runners == 3


def test_a_keyword_that_is_no_setting_is_a_type_error_that_says_which_is_near():
    with pytest.raises(TypeError, match=r"num_env_runers=2 is no setting.*did you mean 'num_env_runners'\?"):
        AlgorithmConfig().env_runners(num_env_runers=2)


def test_a_call_that_is_refused_changes_nothing():
    config = AlgorithmConfig()
    with pytest.raises(ValueError, match="gamma"):
        config.training(lr=0.5, gamma=2)
    with pytest.raises(ValueError, match="gamma"):
        config.update_from_dict({"lr": 0.5, "mine": 1, "gamma": 2})
    assert config.to_dict() == AlgorithmConfig().to_dict()


def test_methods_of_what_there_is_not_refuse_by_name_and_exploring_is_yes_or_no():
    with pytest.raises(ValueError, match="rl_module_spec='x' is not served"):
        AlgorithmConfig().rl_module(rl_module_spec="x")
    with pytest.raises(ValueError, match="num_learners=1 is not served"):
        AlgorithmConfig().learners(num_learners=1)
    assert AlgorithmConfig().exploration(False).explore is False


def test_what_is_not_given_stays_as_it_is():
    config = AlgorithmConfig().training(lr=0.5).training(gamma=0.5).training()
    assert (config.lr, config.gamma) == (0.5, 0.5)


def test_dicts_are_added_to():
    config = AlgorithmConfig().environment(env_config={"a": {"b": 1}, "c": 2}).environment(env_config={"a": {"d": 3}})
    assert config.env_config == {"a": {"b": 1, "d": 3}, "c": 2}
    config.training(optimizer={"eps": 1}, model={"fcnet_hiddens": [3]}).training(optimizer={"betas": (0, 0)})
    config.update_from_dict({"model": {"fcnet_activation": "relu"}})
    assert config.optimizer == {"eps": 1, "betas": (0, 0)}
    assert (config.model["fcnet_hiddens"], config.model["fcnet_activation"]) == ([3], "relu")
    config.evaluation(evaluation_config={"explore": False}).evaluation({"lr": 0.5})
    assert config.evaluation_config == {"explore": False, "lr": 0.5}
    config.env_config = {"z": 1}
    assert config.env_config == {"z": 1}


@pytest.mark.parametrize(("given", "kept"), [("swish", "silu"), (None, "linear"), ("elu", "elu")])
def test_activations_have_the_names_that_they_have_in_rllib(given, kept):
    config = AlgorithmConfig().training(model={"fcnet_activation": given, "fcnet_hiddens": [4]})
    assert config.model["fcnet_activation"] == kept
    with RolloutWorker(env_creator=lambda _: MockEnv(3), default_policy_class=PPOTorchPolicy, config=config) as worker:
        assert worker.sample().count == 200


@pytest.mark.parametrize("key", ["use_lstm", "use_attention"])
def test_networks_with_memory_are_refused_by_key(key):
    with pytest.raises(ValueError, match=rf"model\['{key}'\]=True is not served: write make_model"):
        AlgorithmConfig().training(model={key: True})
    assert AlgorithmConfig().training(model={key: False}).model["fcnet_hiddens"] == [256, 256]


def test_a_key_of_model_that_nothing_reads_is_warned_of_once_and_kept_for_a_model_of_ones_own(recwarn):
    config = AlgorithmConfig().training(model={"dim": 84}).training(model={"dim": 42})
    assert config.model["dim"] == 42
    assert [str(w.message).split(" has")[0] for w in recwarn] == ["model['dim']"]


@pytest.mark.parametrize(
    ("policies", "wanted"),
    [
        ({"b", "a"}, {"a": PolicySpec(), "b": PolicySpec()}),
        (["b", "a"], {"b": PolicySpec(), "a": PolicySpec()}),
        (("b",), {"b": PolicySpec()}),
        ({"b": None}, {"b": PolicySpec()}),
        ({"b": (Some, BOX, BOX, {"lr": 1})}, {"b": PolicySpec(Some, BOX, BOX, {"lr": 1})}),
        ({"b": (Some, BOX)}, {"b": PolicySpec(Some, BOX)}),
        ({"b": ()}, {"b": PolicySpec()}),
        ({"b": [None, None, None, {}]}, {"b": PolicySpec(config={})}),
    ],
)
def test_policies_are_specs_in_one_order_whichever_way_they_are_given(policies, wanted):
    config = AlgorithmConfig().multi_agent(policies=policies)
    assert list(config.policies.items()) == list(wanted.items())
