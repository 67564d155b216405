"""A config as a container, what env creators are told, and the events that callbacks hear."""

import copy
import inspect
import pickle

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
from swath.rollout_workers.config.envs import creator_of

BOX = gym.spaces.Box(-1, 1, (2,))


def mapped(agent_id, episode, **_):
    raise NotImplementedError


def full():
    config = AlgorithmConfig().env_runners(custom_resources_per_env_runner={"tpu": 1})
    config.environment(env_config={"a": {"b": [1, {2}]}, "array": np.zeros(2)}, observation_space=BOX)
    config.multi_agent(policies={"p": PolicySpec(config={"lr": [1]})}, policy_mapping_fn=mapped)
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
    for made in (config.copy(), AlgorithmConfig.from_dict(config.to_dict()), pickle.loads(pickle.dumps(config))):
        assert (made.observation_space, made.policy_mapping_fn) == (BOX, mapped)
        alteration(made)
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
    assert ("lambda" in config.to_dict(), "lambda_" in config.to_dict()) == (True, False)
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


def test_the_config_of_evaluation_is_a_thawed_copy_with_what_is_different():
    config = full().evaluation({"explore": False, "num_workers": 1})
    config.freeze()
    there = config.get_evaluation_config_object()
    assert (there.in_evaluation, there.explore, there.num_env_runners, there.is_frozen) == (True, False, 1, False)
    assert (there.evaluation_config, there.env_config["a"], config.explore) == (None, 1, True)
    assert there.get_evaluation_config_object() is None


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
    made = pickle.loads(pickle.dumps(creator_of("CartPole-v1")))(context)
    assert made.spec.max_episode_steps == 3
    for name, creator in (("", dict), ("mine", "CartPole-v1")):
        with pytest.raises(ValueError, match="must be"):
            register_env(name, creator)


def test_functions_of_callbacks_are_kept_by_event():
    config = AlgorithmConfig().callbacks(on_sample_end=mapped).callbacks(on_episode_end=[mapped, mapped])
    assert config.callback_functions == {"on_sample_end": mapped, "on_episode_end": [mapped, mapped]}
    for wrong, error in (({"on_sample_end": 3}, ValueError), ({"on_train_result": mapped}, TypeError)):
        with pytest.raises(error, match=next(iter(wrong))):
            config.callbacks(**wrong)


def test_ppo_has_the_defaults_of_rllibs_ppo():
    config, plain = PPOConfig(), AlgorithmConfig().to_dict()
    assert {name: value for name, value in config.to_dict().items() if plain[name] != value} == {
        "lr": 5e-5,
        "num_epochs": 30,
        "minibatch_size": 128,
        "train_batch_size": 4000,
        "rollout_fragment_length": "auto",
        "num_env_runners": 2,
    }
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


def test_content_and_attributes_survive_being_copied_and_overrides_change_what_they_name():
    context = EnvContext({"a": [1]}, **FACTS)
    copies = [copy.deepcopy(context), context.copy_with_overrides(), pickle.loads(pickle.dumps(context))]
    for made in (copy.copy(context), context.copy(), *copies):
        assert (type(made), dict(made), facts_of(made)) == (EnvContext, {"a": [1]}, FACTS)
    assert not any(made["a"] is context["a"] for made in copies)
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
    noting = [
        type(name, (DefaultCallbacks,), {event: lambda self, name=name, **kwargs: log.append(name)}) for name in "AB"
    ]

    def fail(**kwargs):
        raise KeyError("mine")

    functions = [lambda **kwargs: log.append(kwargs), fail, lambda **kwargs: log.append("not reached")]
    config = AlgorithmConfig().callbacks(noting, **{event: functions})
    with pytest.raises(KeyError, match="mine"):
        getattr(callbacks_of(config), event)(episode=1)
    assert log == ["A", "B", {"episode": 1}]


def test_a_class_that_is_not_derived_is_refused_and_a_misspelt_method_warned_of():
    class Misspelt(DefaultCallbacks):
        def on_epsiode_end(self, **kwargs): ...

    with pytest.raises(TypeError, match=r"dict.* derive the class from DefaultCallbacks"):
        callbacks_of(AlgorithmConfig().callbacks([DefaultCallbacks, dict]))
    with pytest.warns(NoEffectWarning, match=r"Misspelt.on_epsiode_end has no effect here: .*on_episode_end"):
        callbacks_of(AlgorithmConfig().callbacks(Misspelt))
