"""Specs of policies, and how what they leave empty is found out."""

import pickle
from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import pytest

from swath.rollout_workers import RandomPolicy
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.policy_spec import PolicySpec, everything_to_default, is_policy_to_train, mapper

SPEC, BY_ID, AGENTS, ENV, ELSEWHERE, CONFIG = (gym.spaces.Discrete(n) for n in range(2, 8))


class Act:
    pass


class Other:
    pass


class OneAgent:
    """Looks like a gymnasium env."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation_space = self.action_space = space


class Agents:
    """Looks like a multi-agent env; nothing of a base class was initialised."""

    def __init__(self, spaces: dict[Hashable, gym.Space[Any]], told_by: str = "possible_agents") -> None:
        self.spaces = spaces
        self.told_by = told_by
        if told_by != "get_agent_ids":
            setattr(self, told_by, list(spaces))
        else:
            self.get_agent_ids = lambda: set(spaces)

    def get_observation_space(self, agent):
        return self.spaces[agent]

    get_action_space = get_observation_space


class Wrapped:
    def __init__(self, env) -> None:
        self.unwrapped = env


def setup(config=None, **around):
    config = config or AlgorithmConfig()
    return config.get_multi_agent_setup(**{"default_policy_class": Act, **around})[0]


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
    config = AlgorithmConfig()
    if "the config" in there:
        config.environment(observation_space=CONFIG, action_space=CONFIG)
    spaces = {}
    if 'spaces["__env__"]' in there:
        spaces["__env__"] = (ELSEWHERE, ELSEWHERE)
    if "spaces[pid]" in there:
        spaces["p"] = (BY_ID, BY_ID)
    env = OneAgent(ENV) if first == "the env" else Agents({0: AGENTS}) if "the env's agents" in there else None
    config.multi_agent({"p": PolicySpec(None, SPEC, SPEC) if "its spec" in there else PolicySpec()})
    assert spaces_of(setup(config, env=env, spaces=spaces)["p"]) == (PLACES[first], PLACES[first])


@pytest.mark.parametrize("told_by", ["possible_agents", "agents", "get_agent_ids"])
def test_agents_of_a_policy_lend_it_their_space(told_by):
    env = Wrapped(Agents({0: SPEC, 1: ENV, "two": SPEC}, told_by))
    config = AlgorithmConfig().multi_agent({"odd", "even"}, policy_mapping_fn=lambda a, _: "odd" if a == 1 else "even")
    assert {pid: spaces_of(spec) for pid, spec in setup(config, env=env).items()} == {
        "odd": (ENV, ENV),
        "even": (SPEC, SPEC),
    }


def test_agents_of_one_policy_with_different_spaces_are_refused_with_both_named():
    with pytest.raises(
        ValueError, match=r"agents 0 and 'b' both map to 'default_policy', but their observation spaces"
    ):
        setup(env=Agents({0: SPEC, "b": ENV}))


def test_a_policy_for_which_nobody_has_a_space_is_refused_by_name():
    config = AlgorithmConfig().multi_agent({"p": (None, SPEC)})
    with pytest.raises(ValueError, match=r"policy 'p' has no action_space: neither its PolicySpec, nor spaces\['p'\]"):
        setup(config)


def test_a_class_comes_from_the_spec_or_is_the_default_one():
    config = AlgorithmConfig().multi_agent({"a": PolicySpec(Other), "b": PolicySpec()})
    made = setup(config, env=OneAgent(ENV))
    assert (made["a"].policy_class, made["b"].policy_class) == (Other, Act)
    with pytest.raises(ValueError, match="policy 'b' has no class"):
        setup(config, env=OneAgent(ENV), default_policy_class=None)


def test_a_specs_settings_are_overrides_or_whole():
    whole = AlgorithmConfig().training(gamma=0.5)
    config = AlgorithmConfig().training(lr=0.5, gamma=0.1)
    config.multi_agent(
        {"a": (), "b": PolicySpec(config=AlgorithmConfig.overrides(lr=0.25)), "c": PolicySpec(config=whole)}
    )
    config.freeze()
    made = setup(config, env=OneAgent(ENV))
    assert [(spec.config.lr, spec.config.gamma) for spec in made.values()] == [(0.5, 0.1), (0.25, 0.1), (0.001, 0.5)]
    assert made["c"].config is whole
    assert not made["a"].config.is_frozen
    assert made["a"].config is not config


@pytest.mark.parametrize("ids", [["a"], {"a"}, ("a",)])
def test_ids_say_which_policies_learn(ids):
    question = (
        AlgorithmConfig()
        .multi_agent({"a", "b"}, policies_to_train=ids)
        .get_multi_agent_setup(env=OneAgent(ENV), default_policy_class=Act)[1]
    )
    assert [question("a"), question("b", {"a": 1})] == [True, False]
    assert pickle.loads(pickle.dumps(question))("a")


def test_a_function_says_which_policies_learn_and_nothing_means_all():
    assert is_policy_to_train(everything_to_default) is everything_to_default
    assert is_policy_to_train(None) is None
    assert AlgorithmConfig().get_multi_agent_setup(env=OneAgent(ENV), default_policy_class=Act)[1] is None
    assert is_policy_to_train([])("a") is False


@pytest.mark.parametrize("wrong", ["a", 3, [3], {"a": True}])
def test_what_does_not_say_which_policies_learn_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="must be a list, set or tuple of policy ids"):
        is_policy_to_train(wrong)


TAKE_IT = (
    lambda agent_id, episode, worker: (agent_id, episode, worker),
    lambda agent_id, episode, *, worker: (agent_id, episode, worker),
    lambda agent_id, episode, **kwargs: (agent_id, episode, kwargs["worker"]),
    lambda *args, **kwargs: (*args, kwargs["worker"]),
)
DO_NOT = (lambda agent_id, episode: (agent_id, episode), lambda *args: args, lambda a, e, other=3: (a, e))


@pytest.mark.parametrize("function", [*TAKE_IT, *DO_NOT])
def test_a_mapping_gets_the_worker_if_it_takes_one(function):
    given = ("agent", "episode") if function in DO_NOT else ("agent", "episode", "worker")
    assert mapper(function)("agent", "episode", worker="worker") == given


def test_a_spec_is_serialized_and_made_again():
    spec = PolicySpec(RandomPolicy, SPEC, ENV, {"lr": 1})
    assert PolicySpec.deserialize(pickle.loads(pickle.dumps(spec.serialize()))) == spec
