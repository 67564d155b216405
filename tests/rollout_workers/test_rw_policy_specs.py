"""Specs of policies, and how what they leave empty is found out."""

import pickle
from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

from swath.rollout_workers import AlgorithmConfig, MultiAgentEnv, PolicySpec, RandomPolicy, RolloutWorker
from swath.rollout_workers.config.policy_spec import is_policy_to_train, mapper

SPEC, BY_ID, AGENTS, ENV, ELSEWHERE, CONFIG = (gym.spaces.Discrete(n) for n in range(2, 8))


class Act:
    pass


def one_agent(space: gym.Space[Any]) -> Any:
    """Looks like a gymnasium env."""
    return SimpleNamespace(observation_space=space, action_space=space)


def agents(spaces: dict[Hashable, gym.Space[Any]], told_by: str = "possible_agents") -> Any:
    """Looks like a wrapped multi-agent env; nothing of a base class was initialised."""
    ids = list(spaces)
    own = SimpleNamespace(get_observation_space=spaces.__getitem__, get_action_space=spaces.__getitem__)
    setattr(own, told_by, (lambda: set(ids)) if told_by == "get_agent_ids" else ids)
    return SimpleNamespace(unwrapped=own)


def setup(config=None, **around):
    return (config or AlgorithmConfig()).get_multi_agent_setup(**{"default_policy_class": Act, **around})[0]


def spaces_of(spec: PolicySpec) -> tuple[Any, Any]:
    return spec.observation_space, spec.action_space


PLACES = {
    "its spec": SPEC,
    "spaces[pid]": BY_ID,
    "the env's agents": AGENTS,
    "the env": ENV,
    'spaces["__env__"]': ELSEWHERE,
    "the config": CONFIG,
}


@pytest.mark.parametrize("first", PLACES)
def test_a_space_comes_from_the_first_place_that_has_one(first):
    there = list(PLACES)[list(PLACES).index(first) :]
    config = AlgorithmConfig().environment(observation_space=CONFIG, action_space=CONFIG)
    given = {"__env__": 'spaces["__env__"]', "p": "spaces[pid]"}
    spaces = {key: (PLACES[place], PLACES[place]) for key, place in given.items() if place in there}
    env = one_agent(ENV) if first == "the env" else agents({0: AGENTS}) if "the env's agents" in there else None
    config.multi_agent({"p": PolicySpec(None, SPEC, SPEC) if "its spec" in there else PolicySpec()})
    assert spaces_of(setup(config, env=env, spaces=spaces)["p"]) == (PLACES[first], PLACES[first])


@pytest.mark.parametrize("told_by", ["possible_agents", "agents", "get_agent_ids"])
def test_agents_of_a_policy_lend_it_their_space(told_by):
    env = agents({0: SPEC, 1: ENV, "two": SPEC}, told_by)
    config = AlgorithmConfig().multi_agent({"odd", "even"}, policy_mapping_fn=lambda a, _: "odd" if a == 1 else "even")
    found = {pid: spaces_of(spec) for pid, spec in setup(config, env=env).items()}
    assert found == {"odd": (ENV, ENV), "even": (SPEC, SPEC)}


REFUSED = [
    ({}, {"env": agents({0: SPEC, "b": ENV})}, "agents 0 and 'b' both map to 'default_policy', but their observation"),
    ({"p": (None, SPEC)}, {}, r"policy 'p' has no action_space: neither its PolicySpec, nor spaces\['p'\]"),
    ({"p": ()}, {"env": one_agent(ENV), "default_policy_class": None}, "policy 'p' has no class"),
]


@pytest.mark.parametrize(("policies", "around", "words"), REFUSED)
def test_a_policy_without_class_or_one_space_is_refused_by_name(policies, around, words):
    config = AlgorithmConfig().multi_agent(policies) if policies else None
    with pytest.raises(ValueError, match=words):
        setup(config, **around)


def test_classes_and_settings_of_a_spec_come_first_and_whole_configs_are_taken_as_they_are():
    whole = AlgorithmConfig().training(gamma=0.5)
    config = AlgorithmConfig().training(lr=0.5, gamma=0.1)
    own = {"a": (dict,), "b": PolicySpec(config=AlgorithmConfig.overrides(lr=0.25)), "c": PolicySpec(config=whole)}
    config.multi_agent(own).freeze()
    made = setup(config, env=one_agent(ENV))
    assert [spec.policy_class for spec in made.values()] == [dict, Act, Act]
    assert [(spec.config.lr, spec.config.gamma) for spec in made.values()] == [(0.5, 0.1), (0.25, 0.1), (0.001, 0.5)]
    assert (made["c"].config is whole, made["a"].config.is_frozen) == (True, False)


def test_ids_or_a_function_say_which_policies_learn_and_nothing_means_all():
    around = {"env": one_agent(ENV), "default_policy_class": Act}
    for ids in (["a"], {"a"}, ("a",), lambda pid, batch=None: pid == "a"):
        config = AlgorithmConfig().multi_agent({"a", "b"}, policies_to_train=ids)
        _, question = config.get_multi_agent_setup(**around)
        assert [question("a"), question("b", {"a": 1})] == [True, False]
    assert AlgorithmConfig().get_multi_agent_setup(**around)[1] is None
    assert is_policy_to_train([])("a") is False
    for wrong in ("a", 3, [3], {"a": True}):
        with pytest.raises(TypeError, match="must be a list, set or tuple of policy ids"):
            is_policy_to_train(wrong)


def test_a_mapping_gets_the_worker_if_it_takes_one_and_a_spec_is_made_again():
    for function in (lambda agent, episode, *, worker: worker, lambda *args, **kwargs: kwargs["worker"]):
        assert mapper(function)("agent", "episode", worker="worker") == "worker"
    for function in (lambda agent_id, episode: episode, lambda *args: args[-1]):
        assert mapper(function)("agent", "episode", worker="worker") == "episode"
    spec = PolicySpec(RandomPolicy, SPEC, ENV, {"lr": 1})
    assert PolicySpec.deserialize(pickle.loads(pickle.dumps(spec.serialize()))) == spec


class BySides(MultiAgentEnv):
    """Two agents with a space each; maybe it says them as one."""

    def __init__(self, **whole):
        self.agents = ["left", "right"]
        self.observation_spaces = {"left": BY_ID, "right": AGENTS}
        self.action_spaces = {"left": BY_ID, "right": BY_ID}
        for name, space in whole.items():
            setattr(self, name, space)
        super().__init__()

    def reset(self, *, seed=None, options=None):
        return {"left": BY_ID.sample()}, {}


AS_ONE = gym.spaces.Dict(left=BY_ID, right=AGENTS)


@pytest.mark.parametrize(("whole", "expected"), [({}, AS_ONE), ({"observation_space": ENV}, ENV)])
def test_the_space_of_an_env_whose_agents_have_one_each_is_a_dict_by_agent(whole, expected):
    config = AlgorithmConfig().multi_agent({"left", "right"}, policy_mapping_fn=lambda agent, *_, **__: agent)
    with RolloutWorker(env_creator=lambda _: BySides(**whole), default_policy_class=RandomPolicy, config=config) as one:
        spaces = pickle.loads(pickle.dumps(one.get_spaces()))
        assert spaces["__env__"] == (expected, gym.spaces.Dict(left=BY_ID, right=BY_ID))
        assert one.async_env.observation_space == expected
        assert (spaces["left"], spaces["right"]) == ((BY_ID, BY_ID), (AGENTS, BY_ID))
