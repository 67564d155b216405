"""A config as a container, contexts of env creators, and the events of callbacks.

And settings, row by row: each acts, is warned of once, or is refused by name; there is no fourth way.
"""

import copy
import inspect
import pickle
from math import inf, nan

import gymnasium as gym
import numpy as np
import pytest

from swath.errors import NoEffectWarning
from swath.rollout_workers import (
    AlgorithmConfig,
    DefaultCallbacks,
    EnvContext,
    PolicySpec,
    PPOConfig,
    RLlibCallback,
    register_env,
)
from swath.rollout_workers.callbacks import EVENTS, callbacks_of
from swath.rollout_workers.config.checks import MODEL_DEFAULTS
from swath.rollout_workers.config.policy_spec import map_to_default
from swath.rollout_workers.config.settings import REFUSED, SETTINGS, WITHOUT_EFFECT
from swath.rollout_workers.env_runner import creator_of

BOX = gym.spaces.Box(-1, 1, (2,))


def some(*args, **kwargs):
    """For a creator, a mapping, a callback."""
    raise NotImplementedError


class Some:
    pass


def full():
    config = AlgorithmConfig().env_runners(custom_resources_per_env_runner={"tpu": 1})
    config.environment(env_config={"a": {"b": [1, {2}]}, "array": np.zeros(2)}, observation_space=BOX)
    config.multi_agent(policies={"p": PolicySpec(config={"lr": [1]})}, policy_mapping_fn=some)
    return config.training(model={"fcnet_hiddens": [8]}).evaluation({"env_config": {"a": 1}})


ALTERATIONS = {
    "a list in a dict": lambda config: config.env_config["a"]["b"].append(3),
    "a set in it": lambda config: config.env_config["a"]["b"][1].add(3),
    "an array in it": lambda config: config.env_config["array"].fill(1),
    "policies": lambda config: config.policies.update(q=PolicySpec()),
    "settings of a spec": lambda config: config.policies["p"].config["lr"].append(2),
    "evaluation_config": lambda config: config.evaluation_config["env_config"].clear(),
}


@pytest.mark.parametrize("alteration", ALTERATIONS.values(), ids=ALTERATIONS)
def test_copies_pickles_and_dicts_share_no_container_but_classes_functions_and_spaces(alteration):
    config = full()
    dictionary = config.to_dict()
    for clone in (config.copy(), AlgorithmConfig.from_dict(config.to_dict()), pickle.loads(pickle.dumps(config))):
        assert (clone.observation_space, clone.policy_mapping_fn) == (BOX, some)
        alteration(clone)
    assert repr(config) == repr(full())
    alteration(config)
    assert repr(dictionary) == repr(full().to_dict())


def test_a_frozen_config_refuses_every_way_in_and_its_thawed_copy_none():
    config = AlgorithmConfig().training(lr=0.5)
    config.freeze()
    for change in (
        lambda c: setattr(c, "lr", 0.1),
        lambda c: c.training(lr=0.1),
        lambda c: c.update_from_dict({"num_workers": 2}),
        lambda c: c.__setitem__("lr", 0.1),
    ):
        with pytest.raises(AttributeError, match=r"Cannot set attribute.+of an already frozen AlgorithmConfig"):
            change(config)
        change(config.copy(copy_frozen=False))
    assert (config.lr, config.is_frozen, config.copy().is_frozen) == (0.5, True, True)


def test_a_key_that_is_no_setting_is_kept_for_policies_and_warned_of_once():
    with pytest.warns(NoEffectWarning, match=r"my_key .*kept for policies as config\['my_key'\]") as warned:
        config = AlgorithmConfig.from_dict({"my_key": [1]}).update_from_dict({"my_key": [2]})
    assert len(warned) == 1
    assert config["my_key"] == config.my_key == config.copy()["my_key"] == config.to_dict()["my_key"] == [2]
    setup, _ = config.get_multi_agent_setup(spaces={"__env__": (BOX, BOX)}, default_policy_class=dict)
    assert setup["default_policy"].config["my_key"] == [2]
    assert [config.pop("my_key"), "my_key" in config, config.pop("my_key", 3)] == [[2], False, 3]


def test_a_config_is_read_like_a_dict():
    config = AlgorithmConfig().training(lambda_=0.5, lr=0.1)
    assert config["lambda"] == config["lambda_"] == config.lambda_ == 0.5
    assert (config.get("lr"), config.get("nothing"), config.get("nothing", 3), config.pop("lr")) == (0.1, None, 3, 0.1)
    assert [name in config for name in ("lr", "lambda", "num_workers", "nothing")] == [True, True, True, False]
    assert dict(config) == dict(zip(config.keys(), config.values(), strict=True)) == config.to_dict()
    assert {"lambda", "lambda_"} & set(config.to_dict()) == {"lambda"}
    assert AlgorithmConfig.overrides(lambda_=0.1, num_workers=2) == {"lambda": 0.1, "num_env_runners": 2}
    assert AlgorithmConfig.from_dict({"multiagent": {"count_steps_by": "agent_steps"}}).count_steps_by == "agent_steps"
    assert repr(config) == "<AlgorithmConfig: lr=0.1, lambda=0.5>"
    config["lr"] = 0.2
    assert config.lr == 0.2
    with pytest.raises(KeyError, match="'gama' is no setting of AlgorithmConfig; did you mean 'gamma'"):
        config["gama"]
    with pytest.raises(AttributeError, match="is no setting of AlgorithmConfig; did you mean 'num_env_runners'"):
        config.num_env_runers  # noqa: B018


AUTO = [
    (4, 3, 2456, [205, 205, 205, 205, 204]),
    (12, 1, 1342, [112] * 11 + [111, 111]),
    (2, 4, 3, [1, 1, 1]),
    (0, 4, 10, [3]),
]


@pytest.mark.parametrize(("workers", "envs", "batch_size", "wanted"), AUTO)
def test_auto_shares_the_training_batch_among_the_workers(workers, envs, batch_size, wanted):
    config = AlgorithmConfig().training(train_batch_size=batch_size)
    config.env_runners(workers, num_envs_per_env_runner=envs, rollout_fragment_length="auto")
    assert [config.get_rollout_fragment_length(index) for index in range(workers + 1)] == wanted
    assert config.env_runners(rollout_fragment_length=7).get_rollout_fragment_length(1) == 7


def test_the_config_of_evaluation_is_an_unfrozen_copy_with_its_overrides():
    config = full().evaluation({"explore": False, "num_workers": 1})
    config.freeze()
    evaluation = config.get_evaluation_config_object()
    assert (evaluation.in_evaluation, evaluation.explore, evaluation.is_frozen) == (True, False, False)
    assert (evaluation.num_env_runners, evaluation.evaluation_config) == (1, None)
    assert (evaluation.env_config["a"], config.explore) == (1, True)
    assert evaluation.get_evaluation_config_object() is None


CONTRADICTIONS = [
    (AlgorithmConfig().training(use_critic=False), "use_gae=True needs use_critic=True"),
    (AlgorithmConfig().multi_agent({"a", "b"}, policies_to_train=["b", "c"]), r"policies_to_train has \['c'\]"),
    (AlgorithmConfig().evaluation({"lr": 1}, in_evaluation=True), "evaluation_config must be None"),
    (AlgorithmConfig().evaluation({"gamma": 2}), "gamma=2"),
    (AlgorithmConfig().multi_agent({"a": PolicySpec(config={"gamma": 2})}), "gamma=2"),
]


@pytest.mark.parametrize(("config", "message"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        config.validate()


def test_a_registered_name_makes_envs_and_any_other_is_gymnasiums():
    register_env("mine", lambda context: ("mine", context.worker_index))
    context = EnvContext({"max_episode_steps": 3}, 2)
    assert creator_of("mine")(context) == ("mine", 2)
    env = pickle.loads(pickle.dumps(creator_of("CartPole-v1")))(context)
    assert env.spec.max_episode_steps == 3
    for name, creator in (("", dict), ("mine", "CartPole-v1")):
        with pytest.raises(ValueError, match="must be"):
            register_env(name, creator)


def test_ppo_has_the_defaults_of_rllibs_ppo():
    changed = {"lr": 5e-5, "num_epochs": 30, "minibatch_size": 128, "train_batch_size": 4000, "num_env_runners": 2}
    changed["rollout_fragment_length"] = "auto"
    config, plain = PPOConfig(), AlgorithmConfig().to_dict()
    assert {name: value for name, value in config.to_dict().items() if plain[name] != value} == changed
    assert type(config.training(gamma=0.5).copy()) is PPOConfig


FACTS = {"worker_index": 3, "vector_index": 2, "remote": True, "num_workers": 5, "recreated_worker": True}


def facts_of(context):
    return {name: getattr(context, name) for name in FACTS}


def test_it_is_a_copy_of_the_config_with_attributes_and_says_them():
    config = {"a": 1}
    context = EnvContext(config, 0)
    context.set_defaults({"a": -1, "b": 2})
    assert (config, context, [*facts_of(context).values()]) == ({"a": 1}, {"a": 1, "b": 2}, [0, 0, False, None, False])
    assert str(EnvContext(config, **FACTS)) == "{'a': 1, worker=3/5, vector_idx=2, remote=True}"


def test_copies_keep_content_and_attributes_except_overrides():
    context = EnvContext({"a": [1]}, **FACTS)
    copies = [copy.deepcopy(context), context.copy_with_overrides(), pickle.loads(pickle.dumps(context))]
    for clone in (copy.copy(context), context.copy(), *copies):
        assert (type(clone), dict(clone), facts_of(clone)) == (EnvContext, {"a": [1]}, FACTS)
    assert not any(clone["a"] is context["a"] for clone in copies)
    for name, fact in FACTS.items():
        value = type(fact)(0)  # something falsy, too
        assert facts_of(context.copy_with_overrides(**{name: value})) == {**FACTS, name: value}
    assert context.copy_with_overrides(env_config={"b": 2}) == {"b": 2}


EPISODE = ("episode", "worker", "base_env", "env", "policies", "env_index")
SET = ("worker_set", "worker_ids", "is_evaluation")
PARAMETERS = {
    "on_sub_environment_created": ("worker", "sub_environment", "env_context", "env_index"),
    "on_create_policy": ("policy_id", "policy"),
    "on_episode_created": EPISODE,
    "on_episode_start": EPISODE,
    "on_episode_step": EPISODE,
    "on_episode_end": EPISODE,
    "on_postprocess_trajectory": (
        "worker", "episode", "agent_id", "policy_id", "policies", "postprocessed_batch", "original_batches",
    ),
    "on_sample_end": ("worker", "samples"),
    "on_learn_on_batch": ("policy", "train_batch", "result"),
    "on_workers_recreated": SET,
    "on_env_runners_recreated": SET,
}  # fmt: skip


@pytest.mark.parametrize("event", PARAMETERS)
def test_an_event_takes_keywords_only_and_tolerates_more(event):
    assert (set(EVENTS), RLlibCallback) == (set(PARAMETERS), DefaultCallbacks)
    facts = {name: f"the {name}" for name in PARAMETERS[event]}
    method = getattr(DefaultCallbacks(), event)
    assert method(**facts) is None
    parameters = inspect.signature(method).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == set(PARAMETERS[event])
    if event != "on_create_policy":
        method(**facts, env_runner=None, news=1)


@pytest.mark.parametrize("event", PARAMETERS)
def test_classes_and_functions_of_a_config_are_called_in_order_until_one_raises(event):
    log = []
    note = lambda name: {event: lambda self, **kwargs: log.append(name)}
    noting = [type(name, (DefaultCallbacks,), note(name)) for name in "AB"]

    def fail(**kwargs):
        raise KeyError("mine")

    functions = [lambda **kwargs: log.append(kwargs), fail, lambda **kwargs: log.append("not reached")]
    config = AlgorithmConfig().callbacks(noting, **{event: functions})
    with pytest.raises(KeyError, match="mine"):
        getattr(callbacks_of(config), event)(episode=1)
    assert log == ["A", "B", {"episode": 1}]


def test_functions_are_kept_by_event_and_invalid_callbacks_are_refused_or_warned_of():
    config = AlgorithmConfig().callbacks(on_sample_end=some).callbacks(on_episode_end=[some, some])
    assert config.callback_functions == {"on_sample_end": some, "on_episode_end": [some, some]}
    for wrong, error in (({"on_sample_end": 3}, ValueError), ({"on_train_result": some}, TypeError)):
        with pytest.raises(error, match=next(iter(wrong))):
            config.callbacks(**wrong)

    class Misspelt(DefaultCallbacks):
        def on_epsiode_end(self, **kwargs): ...

    with pytest.raises(TypeError, match=r"dict.* derive the class from DefaultCallbacks"):
        callbacks_of(AlgorithmConfig().callbacks([DefaultCallbacks, dict]))
    with pytest.warns(NoEffectWarning, match=r"Misspelt.on_epsiode_end has no effect here: .*on_episode_end"):
        callbacks_of(AlgorithmConfig().callbacks(Misspelt))


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
WRONG_IN_MODEL = [("fcnet_hiddens", 8), ("fcnet_hiddens", [0]), ("max_seq_len", 0)]
WRONG_IN_MODEL += [("fcnet_activation", "gelu"), ("fcnet_activation", [1])]
SETTINGS_THAT_ACT = {
    "env": (None, ["CartPole-v1", some, Some], [3, BOX]),
    "env_config": ({}, [{"a": 1}], [3, {1: 2}, "a"]),
    "observation_space": (None, [BOX], ["Box", 3]),
    "action_space": (None, [BOX], ["Box", 3]),
    "clip_rewards": (None, [True, False, 2.5], [-1, 0, "sign", nan]),
    "num_env_runners": (0, [3], [-1, 1.5, "2", True, None]),
    "num_envs_per_env_runner": (1, [4], [0, 1.5, None]),
    "env_processes": (None, [2], [0, 1.5, "2", True]),
    "step_timeout_s": (300.0, [2.5], [*SECONDS, 0]),
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
    "policy_mapping_fn": (map_to_default, [some], [None, "a", 3]),
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
        [3, None, *({name: wrong} for name, wrong in WRONG_IN_MODEL)],
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
"""By name: the default, values it takes, values it refuses; of those that act."""
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


@pytest.mark.parametrize("name", SETTINGS_THAT_ACT)
def test_a_setting_has_its_default_and_accepts_and_refuses_values(name):
    default, good, bad = SETTINGS_THAT_ACT[name]
    new, keyword = AlgorithmConfig(), "framework" if name == "framework_str" else name
    assert (new[name], type(getattr(new, name))) == (default, type(default))
    for value in (default, *good):
        config = AlgorithmConfig().training(**{keyword: value})
        assert config[name] == AlgorithmConfig.from_dict({name: value})[name] == value
        setattr(new, name, value)
        assert new[name] == value
    for value in bad:
        for setter in (AlgorithmConfig.overrides, AlgorithmConfig().training):
            with pytest.raises(ValueError, match=rf"{name}.* must "):
                setter(**{keyword: value})


def test_the_tables_have_every_setting_and_a_method_documents_each():
    assert {*SETTINGS_THAT_ACT, "callback_functions"} == set(SETTINGS)
    assert set(NO_EFFECT.split()) == set(WITHOUT_EFFECT)
    docstrings = "".join(method.__doc__ or "" for method in vars(AlgorithmConfig).values())
    assert [name for name in SETTINGS_THAT_ACT if f"`{name}`" not in docstrings] == ["lambda", "framework_str"]


@pytest.mark.parametrize("name", NO_EFFECT.split())
def test_a_setting_without_effect_is_warned_of_once_and_kept(name, recwarn):
    config = AlgorithmConfig().checkpointing(**{name: None})
    assert config[name] is AlgorithmConfig()[name] is None
    config.reporting(**{name: 5}).update_from_dict({name: 5})
    assert [(w.category, str(w.message).split()[0]) for w in recwarn] == [(NoEffectWarning, name)]
    assert getattr(config, name) == config[name] == 5


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_is_not_served_is_refused_by_name(name):
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
def test_invalid_arguments_are_refused(call, error, words):
    config = AlgorithmConfig().environment("CartPole-v1").debugging(3).framework("torch").api_stack(False, False)
    with pytest.raises(error, match=words):
        call(config)
    assert (config.env, config.seed) == ("CartPole-v1", 3), "the first argument, by position"


def test_policies_in_any_form_become_specs_in_one_order():
    arguments = (Some, BOX, BOX, {"lr": 1})
    for policies, wanted in (
        ({"b", "a"}, {"a": PolicySpec(), "b": PolicySpec()}),
        (["b", "a"], {"b": PolicySpec(), "a": PolicySpec()}),
        ({"b": arguments, "a": None}, {"b": PolicySpec(*arguments), "a": PolicySpec()}),
    ):
        config = AlgorithmConfig().multi_agent(policies=policies)
        assert list(config.policies.items()) == list(wanted.items())
        assert config.is_multi_agent
    assert not AlgorithmConfig().multi_agent({"default_policy"}).is_multi_agent
