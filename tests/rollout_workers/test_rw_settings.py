"""Settings, row by row: each acts, is warned of once, or is refused by name; there is no fourth way.

`ACTS` says of each setting that acts: by which method it is set, what it is by default, values it takes, values it
refuses, and where its effect is to be seen once workers are there.
"""

from math import inf, nan

import gymnasium as gym
import pytest

from swath.errors import NoEffectWarning
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.checks import MODEL_DEFAULTS
from swath.rollout_workers.config.policy_spec import PolicySpec, everything_to_default
from swath.rollout_workers.config.settings import REFUSED, SETTINGS, WITHOUT_EFFECT


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
ON = (
    "normalize_actions explore create_local_env_runner validate_env_runners_after_construction "
    "use_worker_filter_stats update_worker_filter_stats use_gae use_critic use_kl_loss restart_failed_env_runners"
)
OFF = (
    "clip_actions create_env_on_local_worker ignore_action_bounds ignore_env_runner_failures "
    "restart_failed_sub_environments fake_sampler _fake_gpus in_evaluation keep_per_episode_custom_metrics "
    "_disable_preprocessor_api"
)
SETTINGS_THAT_ACT = {
    "env": (None, ["CartPole-v1", maker, Some], [3, BOX]),
    "env_config": ({}, [{"a": 1}], [3, {1: 2}, "a"]),
    "observation_space": (None, [BOX], ["Box", 3]),
    "action_space": (None, [BOX], ["Box", 3]),
    "clip_rewards": (None, [True, False, 2.5], [-1, 0, "sign", nan]),
    "num_env_runners": (0, [3], [-1, 1.5, "2", True, None]),
    "num_envs_per_env_runner": (1, [4], [0, 1.5, None]),
    "rollout_fragment_length": (200, [10, "auto"], [0, "long", 1.5, None]),
    "batch_mode": ("truncate_episodes", ["complete_episodes"], ["whole", None]),
    "observation_filter": ("NoFilter", ["MeanStdFilter", "ConcurrentMeanStdFilter", some], ["Mean", None, 3]),
    "num_cpus_per_env_runner": (1.0, [0.0, 2.0], AT_LEAST_0),
    "num_gpus_per_env_runner": (0.0, [0.5], AT_LEAST_0),
    "custom_resources_per_env_runner": ({}, [{"tpu": 1.0}], [{"tpu": -1}, {1: 1}, 3]),
    "sample_timeout_s": (60.0, DELAY, SECONDS),
    "max_requests_in_flight_per_env_runner": (1, [2], [0, 1.5, None]),
    "policies": (
        {"default_policy": PolicySpec()},
        [{"a": PolicySpec(config={"lr": 0.1})}],
        [{}, [], 3, "a", {1: PolicySpec()}, {"a": 3}, {"a": (1, 2, 3, 4, 5)}, {""}, None],
    ),
    "policy_mapping_fn": (everything_to_default, [some], [None, "a", 3]),
    "policies_to_train": (None, [["a"], {"a"}, ("a",), some], ["a", 3, [3]]),
    "count_steps_by": ("env_steps", ["agent_steps"], ["steps", None]),
    "gamma": (0.99, [0.0, 1.0], UNIT),
    "lr": (0.001, [0.0, 1.0], [-1, "x", None, [[0, 1.0]]]),
    "lr_schedule": (None, [[[0.0, 0.1], [100.0, 0.01]]], [[[1, 0.1]], [[0, 1], [0, 2]], [], 3, "ab", [3], [[0, 1, 2]]]),
    "grad_clip": (None, [0.5], [0, -1, "x"]),
    "grad_clip_by": ("global_norm", ["norm", "value"], ["l1", None]),
    "train_batch_size": (32, [100], [0, 1.5, None]),
    "num_epochs": (1, [3], [0, 1.5, None]),
    "minibatch_size": (None, [0, 16], [-1, 1.5]),
    "shuffle_batch_per_epoch": (True, [True], [False, None]),
    "model": (
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
    ),
    "optimizer": ({}, [{"eps": 1e-05}], [3, None, {1: 2}]),
    "lambda": (1.0, [0.95], UNIT),
    "clip_param": (0.3, [0.1, inf], AT_LEAST_0),
    "vf_clip_param": (10.0, [1.0, inf], AT_LEAST_0),
    "vf_loss_coeff": (1.0, [0.5], AT_LEAST_0),
    "entropy_coeff": (0.0, [0.01], AT_LEAST_0),
    "entropy_coeff_schedule": (None, [[[0.0, 0.1], [10.0, 0.0]]], [[[5, 1]], 3]),
    "kl_coeff": (0.2, [0.0], AT_LEAST_0),
    "kl_target": (0.01, [0.1], AT_LEAST_0),
    "callbacks_class": (None, [Some, [Some, Some]], ["Some", 3, [3]]),
    "max_num_env_runner_restarts": (1000, [0, 3], [-1, 1.5, None]),
    "delay_between_env_runner_restarts_s": (1.0, DELAY, SECONDS),
    "num_consecutive_env_runner_failures_tolerance": (100, [0], [-1, None]),
    "env_runner_health_probe_timeout_s": (30.0, DELAY, SECONDS),
    "env_runner_restore_timeout_s": (120.0, [2.5], [*SECONDS, 0]),
    "env_runner_hang_timeout_s": (300.0, [2.5, None], [-1, 0, inf, "x"]),
    "max_num_sub_environment_restarts": (5, [0], [-1, None]),
    "delay_between_sub_environment_restarts_s": (0.1, DELAY, SECONDS),
    "seed": (None, [0, 7], [-1, 1.5, "x", True]),
    "log_level": ("WARN", ["DEBUG"], ["LOUD", 10, None]),
    "extra_python_environs_for_driver": ({}, [{"A": "1"}], [3, {1: "1"}]),
    "extra_python_environs_for_worker": ({}, [{"A": 1}], [3, None]),
    "num_gpus": (0.0, [1.0], AT_LEAST_0),
    "framework_str": ("torch", ["torch"], ["tf", "tf2", None]),
    "evaluation_config": (None, [{"explore": False}], [3, "x"]),
    "input_": ("sampler", ["dataset"], ["/tmp/batches", None, some]),
}
"""By name: the default, values it takes, values it refuses."""
SETTINGS_THAT_ACT |= {name: (True, [False], FLAGS) for name in ON.split()}
SETTINGS_THAT_ACT |= {name: (False, [True], FLAGS) for name in OFF.split()}

NO_EFFECT = (
    "disable_env_checking preprocessor_pref remote_env_batch_wait_ms use_env_runner_state_server policy_map_capacity "
    "policy_states_are_swappable log_sys_usage metrics_episode_collection_timeout_s log_gradients "
    "metrics_num_episodes_for_smoothing min_time_s_per_iteration min_train_timesteps_per_iteration "
    "min_sample_timesteps_per_iteration export_native_model_files checkpoint_trainable_policies_only"
)

OLD_NAMES = {
    "num_rollout_workers": "num_env_runners",
    "recreate_failed_workers": "restart_failed_env_runners",
    "recreate_failed_env_runners": "restart_failed_env_runners",
    "max_requests_in_flight_per_sampler_worker": "max_requests_in_flight_per_env_runner",
    "create_env_on_driver": "create_env_on_local_worker",
    "num_sgd_iter": "num_epochs",
    "sgd_minibatch_size": "minibatch_size",
}
WITH_WORKER = (
    "num_workers num_envs_per_worker ignore_worker_failures max_num_worker_restarts delay_between_worker_restarts_s "
    "worker_restore_timeout_s worker_health_probe_timeout_s num_consecutive_worker_failures_tolerance "
    "num_cpus_per_worker num_gpus_per_worker custom_resources_per_worker validate_workers_after_construction"
)
OLD_NAMES |= {name: name.replace("worker", "env_runner") for name in WITH_WORKER.split()}


def keyword(name: str) -> str:
    """What a fluent method calls a setting."""
    return {"framework_str": "framework"}.get(name, name)


@pytest.mark.parametrize("name", SETTINGS_THAT_ACT)
def test_a_setting_has_its_default_takes_values_however_they_are_given_and_refuses_others_by_name(name):
    default, good, bad = SETTINGS_THAT_ACT[name]
    new = AlgorithmConfig()
    assert (new[name], type(getattr(new, name))) == (default, type(default))
    for value in (default, *good):
        config = AlgorithmConfig().training(**{keyword(name): value})
        assert config[name] == AlgorithmConfig.from_dict({name: value})[name] == value
        setattr(new, name, value)
        assert new[name] == value
    for value in bad:
        for way in (AlgorithmConfig.overrides, AlgorithmConfig().training):
            with pytest.raises(ValueError, match=rf"{name}.* must "):
                way(**{keyword(name): value})


def test_these_tables_have_every_setting_and_some_method_says_what_each_is():
    assert {*SETTINGS_THAT_ACT, "callback_functions"} == set(SETTINGS)
    assert set(NO_EFFECT.split()) == set(WITHOUT_EFFECT)
    said = "".join(method.__doc__ or "" for method in vars(AlgorithmConfig).values())
    assert [name for name in SETTINGS_THAT_ACT if f"`{name}`" not in said] == ["lambda", "framework_str"]


@pytest.mark.parametrize("name", NO_EFFECT.split())
def test_a_setting_without_effect_is_warned_of_once_and_kept(name, recwarn):
    config = AlgorithmConfig().checkpointing(**{name: None})
    assert config[name] is AlgorithmConfig()[name] is None
    config.reporting(**{name: 5}).update_from_dict({name: 5})
    assert [(w.category, str(w.message).split()[0]) for w in recwarn] == [(NoEffectWarning, name)]
    assert getattr(config, name) == config[name] == 5


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_cannot_be_had_is_refused_by_name_however_it_is_given(name):
    for give in (AlgorithmConfig().env_runners, AlgorithmConfig.overrides, AlgorithmConfig().learners):
        with pytest.raises(ValueError, match=rf"^{name}=<.*Some.*> is not served: \w"):
            give(**{name: Some()})
    assert AlgorithmConfig.from_dict({name: None})[name] is None


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_means_the_setting_that_has_replaced_it(old):
    name = OLD_NAMES[old]
    default, (value, *_), _ = SETTINGS_THAT_ACT[name]
    config = AlgorithmConfig().rollouts(**{old: value})
    assert config[name] == config[old] == getattr(config, old) == value != default
    assert config.to_dict() == AlgorithmConfig.from_dict({name: value}).to_dict()
    setattr(config, old, default)
    assert config[name] == default


def test_a_call_that_is_refused_changes_nothing():
    config = AlgorithmConfig()
    with pytest.raises(ValueError, match="gamma"):
        config.training(lr=0.5, gamma=2)
    with pytest.raises(ValueError, match="gamma"):
        config.update_from_dict({"lr": 0.5, "mine": 1, "gamma": 2})
    assert config.to_dict() == AlgorithmConfig().to_dict()


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


REFUSED_CALLS = [
    (lambda c: c.training(model={"use_lstm": True}), ValueError, r"model\['use_lstm'\]=True is not served"),
    (lambda c: c.training(model={"use_attention": True}), ValueError, r"model\['use_attention'\]=True is not served"),
    (lambda c: c.env_runners(num_env_runners=4, num_workers=3), ValueError, "num_workers=3 are one setting"),
    (lambda c: c.env_runners(num_env_runers=2), TypeError, r"is no setting.*did you mean 'num_env_runners'\?"),
    (lambda c: c.overrides(num_env_runers=2), KeyError, "did you mean 'num_env_runners'"),
    (lambda c: c.api_stack(True, False), ValueError, "api_stack|enable_rl_module"),
    (lambda c: c.build_algo(env="CartPole-v1"), NotImplementedError, r"WorkerSet.*swath\.learn"),
    (lambda c: c.build(), NotImplementedError, r"WorkerSet.*swath\.learn"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED_CALLS)
def test_what_cannot_be_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(AlgorithmConfig())


def test_the_first_argument_may_be_given_by_position():
    assert AlgorithmConfig().environment("CartPole-v1").framework("torch").api_stack(False, False).env == "CartPole-v1"


def test_policies_are_specs_in_one_order_whichever_way_they_are_given():
    for policies, wanted in (
        ({"b", "a"}, {"a": PolicySpec(), "b": PolicySpec()}),
        (["b", "a"], {"b": PolicySpec(), "a": PolicySpec()}),
        (
            {"b": (Some, BOX, BOX, {"lr": 1}), "a": None},
            {"b": PolicySpec(Some, BOX, BOX, {"lr": 1}), "a": PolicySpec()},
        ),
    ):
        config = AlgorithmConfig().multi_agent(policies=policies)
        assert list(config.policies.items()) == list(wanted.items())
        assert config.is_multi_agent
    assert not AlgorithmConfig().multi_agent({"default_policy"}).is_multi_agent
