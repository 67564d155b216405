"""A config as a container: copies, frozen ones, dicts, own keys, and what follows from several settings."""

import copy
import pickle

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from swath.errors import NoEffectWarning
from swath.rollout_workers import PPOConfig
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.envs import creator_of, register_env
from swath.rollout_workers.config.policy_spec import PolicySpec
from swath.rollout_workers.env_runner import EnvContext

BOX = gym.spaces.Box(-1, 1, (2,))


def mapped(agent_id, episode, **_):
    raise NotImplementedError


def full() -> AlgorithmConfig:
    return (
        AlgorithmConfig()
        .environment(env_config={"a": {"b": [1, {2}]}, "array": np.zeros(2)}, observation_space=BOX)
        .env_runners(custom_resources_per_env_runner={"tpu": 1})
        .multi_agent(policies={"p": PolicySpec(config={"lr": [1]})}, policy_mapping_fn=mapped, policies_to_train=["p"])
        .training(model={"fcnet_hiddens": [8]}, optimizer={"betas": [0.9, 0.9]})
        .evaluation({"env_config": {"a": 1}})
    )


ALTERATIONS = {
    "env_config": lambda config: config.env_config["a"]["b"].append(3),
    "a set in it": lambda config: config.env_config["a"]["b"][1].add(3),
    "an array in it": lambda config: config.env_config["array"].fill(1),
    "resources": lambda config: config.custom_resources_per_env_runner.clear(),
    "policies": lambda config: config.policies.update(q=PolicySpec()),
    "a spec": lambda config: setattr(config.policies["p"], "policy_class", dict),
    "settings of a spec": lambda config: config.policies["p"].config["lr"].append(2),
    "policies_to_train": lambda config: config.policies_to_train.append("q"),
    "model": lambda config: config.model["fcnet_hiddens"].append(8),
    "optimizer": lambda config: config.optimizer["betas"].append(1),
    "evaluation_config": lambda config: config.evaluation_config["env_config"].clear(),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
@pytest.mark.parametrize(
    "copied", [AlgorithmConfig.copy, copy.deepcopy, lambda c: AlgorithmConfig.from_dict(c.to_dict())]
)
def test_a_copy_shares_no_container(copied, alteration):
    config = full()
    ALTERATIONS[alteration](copied(config))
    assert repr(config) == repr(full())
    dictionary = config.to_dict()
    ALTERATIONS[alteration](config)
    assert repr(dictionary) == repr(full().to_dict())
    assert repr(AlgorithmConfig()) == "<AlgorithmConfig: as by default>"
    assert (config.copy().observation_space, config.copy().policy_mapping_fn) == (BOX, mapped), "these are shared"


@pytest.mark.parametrize("send", [pickle, cloudpickle])
def test_a_config_survives_pickling(send):
    config = full()
    config.update_from_dict({"ignore_action_bounds": True})
    clone = send.loads(send.dumps(config))
    assert repr(clone) == repr(config)


def test_a_frozen_config_refuses_every_way_in_and_its_thawed_copy_none():
    config = AlgorithmConfig().training(lr=0.5)
    config.freeze()
    for change in (
        lambda c: setattr(c, "lr", 0.1),
        lambda c: setattr(c, "algo_class", dict),
        lambda c: c.training(lr=0.1),
        lambda c: c.update_from_dict({"lr": 0.1}),
        lambda c: c.update_from_dict({"num_workers": 2}),
        lambda c: c.__setitem__("lr", 0.1),
    ):
        with pytest.raises(AttributeError, match=r"Cannot set attribute.+of an already frozen AlgorithmConfig"):
            change(config)
        change(config.copy(copy_frozen=False))
    assert config.lr == 0.5
    assert config.training() is config


def test_a_key_that_is_no_setting_is_kept_for_policies_and_warned_of_once():
    with pytest.warns(NoEffectWarning, match=r"my_key .*kept for policies as config\['my_key'\]") as warned:
        config = AlgorithmConfig.from_dict({"my_key": [1]}).update_from_dict({"my_key": [2]})
    assert len(warned) == 1
    assert config["my_key"] == config.my_key == config.get("my_key") == config.to_dict()["my_key"] == [2]
    assert config.copy()["my_key"] == [2]
    assert config.copy()["my_key"] is not config["my_key"]
    assert config.get_multi_agent_setup(
        spaces={"__env__": (BOX, BOX)}, default_policy_class=dict
    )[0]["default_policy"].config["my_key"] == [2]  # fmt: skip


def test_an_attribute_that_there_is_not_is_told_with_the_nearest_name():
    with pytest.raises(AttributeError, match="is no setting of AlgorithmConfig; did you mean 'num_env_runners'"):
        AlgorithmConfig().num_env_runers  # noqa: B018
    assert not hasattr(AlgorithmConfig(), "__array__")


def test_a_config_is_read_like_a_dict():
    config = AlgorithmConfig().training(lambda_=0.5, lr=0.1)
    assert config["lambda"] == config["lambda_"] == config.lambda_ == 0.5
    assert (config.get("lr"), config.get("nothing"), config.get("nothing", 3)) == (0.1, None, 3)
    assert [name in config for name in ("lr", "lambda", "num_workers", "nothing")] == [True, True, True, False]
    assert dict(config.items()) == dict(zip(config.keys(), config.values(), strict=True)) == {**config}
    assert dict(config) == config.to_dict()
    assert "lambda" in config.to_dict()
    assert "lambda_" not in config.to_dict()
    with pytest.raises(KeyError, match="'gama' is no setting of AlgorithmConfig; did you mean 'gamma'"):
        config["gama"]
    config["lr"] = 0.2
    assert config.lr == 0.2


def test_what_is_popped_is_gone_unless_it_is_a_setting():
    with pytest.warns(NoEffectWarning, match="my_key"):
        config = AlgorithmConfig.from_dict({"my_key": 1})
    assert [config.pop("my_key"), "my_key" in config, config.pop("nothing", 3)] == [1, False, 3]
    assert config.pop("gamma") == config.gamma == 0.99, "every config has it"
    with pytest.raises(KeyError, match="nothing"):
        config.pop("nothing")
    with pytest.raises(AttributeError, match="training is a method"):
        config.training = 3


def test_a_multiagent_sub_dict_is_read():
    config = AlgorithmConfig.from_dict({"multiagent": {"policies": {"a"}, "count_steps_by": "agent_steps"}, "lr": 0.5})
    assert (list(config.policies), config.count_steps_by, config.lr) == (["a"], "agent_steps", 0.5)
    with pytest.raises(ValueError, match="observation_fn"):
        AlgorithmConfig.from_dict({"multiagent": {"observation_fn": mapped}})


def test_overrides_are_a_dict_of_settings_that_there_are():
    assert AlgorithmConfig.overrides(lr=0.5, lambda_=0.1, num_workers=2) == {
        "lr": 0.5,
        "lambda": 0.1,
        "num_env_runners": 2,
    }
    with pytest.raises(KeyError, match="'learning_rat' is no setting"):
        AlgorithmConfig.overrides(learning_rat=0.5)
    with pytest.raises(KeyError, match="did you mean 'num_env_runners'"):
        AlgorithmConfig.overrides(num_env_runers=2)


@pytest.mark.parametrize(
    ("policies", "wanted"), [({"default_policy"}, False), ({"a"}, True), ({"default_policy", "a"}, True)]
)
def test_a_config_is_multi_agent_unless_the_default_policy_is_the_only_one(policies, wanted):
    assert AlgorithmConfig().multi_agent(policies).is_multi_agent is wanted


@pytest.mark.parametrize(
    ("workers", "envs", "batch_size", "wanted"),
    [
        (4, 3, 2456, [205, 205, 205, 205, 204]),
        (3, 2, 4000, [667, 667, 667, 666]),
        (12, 1, 1342, [112] * 11 + [111, 111]),
        (2, 20, 512, [13, 13, 13]),
        (2, 2, 2000, [500, 500, 500]),
        (2, 4, 3, [1, 1, 1]),
        (0, 2, 10, [5]),
        (0, 4, 10, [3]),
    ],
)
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
    assert there.evaluation_config is None
    assert there.env_config["a"] == 1
    assert there.env_config.keys() == config.env_config.keys()
    assert there.get_evaluation_config_object() is None
    assert (config.in_evaluation, config.explore) == (False, True)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AlgorithmConfig().training(use_critic=False), "use_gae=True needs use_critic=True"),
        (AlgorithmConfig().multi_agent({"a", "b"}, policies_to_train=["b", "c"]), r"policies_to_train has \['c'\]"),
        (AlgorithmConfig().evaluation({"lr": 1}, in_evaluation=True), "evaluation_config must be None"),
        (AlgorithmConfig().evaluation({"gamma": 2}), "gamma=2"),
        (AlgorithmConfig().multi_agent({"a": PolicySpec(config={"gamma": 2})}), "gamma=2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        config.validate()


@pytest.mark.parametrize("build", ["build", "build_algo"])
def test_there_is_no_algorithm_to_build(build):
    with pytest.raises(NotImplementedError, match=r"WorkerSet.*swath\.learn"):
        getattr(AlgorithmConfig(dict), build)(env="CartPole-v1")


def test_a_config_shows_what_is_different_from_a_new_one():
    config = AlgorithmConfig().env_runners(2).training(lr=0.5)
    assert repr(config) == "<AlgorithmConfig: num_env_runners=2, lr=0.5>"
    config.freeze()
    assert repr(config).endswith("; frozen>")


@pytest.mark.parametrize(("name", "creator"), [("", dict), (3, dict), ("mine", "CartPole-v1")])
def test_a_name_without_a_creator_is_refused(name, creator):
    with pytest.raises(ValueError, match="must be"):
        register_env(name, creator)


def test_a_registered_name_makes_envs_and_any_other_is_gymnasiums():
    register_env("mine", lambda context: ("mine", context.worker_index))
    context = EnvContext({"max_episode_steps": 3}, 2)
    assert creator_of("mine")(context) == ("mine", 2)
    made = pickle.loads(pickle.dumps(creator_of("CartPole-v1")))(context)
    assert made.spec.max_episode_steps == 3
    made.close()


def test_functions_of_callbacks_are_kept_by_event():
    config = AlgorithmConfig().callbacks(on_sample_end=mapped).callbacks(on_episode_end=[mapped, mapped])
    assert config.callback_functions == {"on_sample_end": mapped, "on_episode_end": [mapped, mapped]}
    for wrong, error in (({"on_sample_end": 3}, ValueError), ({"on_train_result": mapped}, TypeError)):
        with pytest.raises(error, match=next(iter(wrong))):
            config.callbacks(**wrong)


PPO_IN_RLLIB = {
    "lr": 5e-5,
    "num_epochs": 30,
    "minibatch_size": 128,
    "train_batch_size": 4000,
    "rollout_fragment_length": "auto",
    "num_env_runners": 2,
}
"""Defaults of RLlib 2.60's `PPOConfig` that are not those of its `AlgorithmConfig`."""


def test_ppo_has_the_defaults_of_rllibs_ppo():
    config, plain = PPOConfig(), AlgorithmConfig().to_dict()
    assert {name: value for name, value in config.to_dict().items() if plain[name] != value} == PPO_IN_RLLIB
    assert type(config.training(gamma=0.5).copy()) is PPOConfig
    assert isinstance(config, AlgorithmConfig)
    assert PPOConfig.from_dict({"lr": 0.5})["num_epochs"] == 30
