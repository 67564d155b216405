"""What every policy has, those that are random, settings in a policy's own config.

And specs of policies, and how what they leave empty is found out.
"""

import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rw_toys import Agents, by_parity, made_of

from mock_envs import RandomEnv
from swath.rollout_workers import (
    AlgorithmConfig,
    MultiAgentEnv,
    Policy,
    PolicySpec,
    PPOTorchPolicy,
    RandomPolicy,
    RolloutWorker,
    ViewRequirement,
)
from swath.rollout_workers.batches.names import WantedColumns
from swath.rollout_workers.config.policy_spec import is_policy_to_train, with_worker_argument
from swath.rollout_workers.filters import MeanStdFilter, NoFilter

BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
CONFIG = {"__policy_id": "p", "worker_index": 0}


class Adding(Policy):
    """Answers all that it was given."""

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        self.given = kwargs
        summed = np.asarray(obs_batch).sum(-1)
        return summed, [state + 1 for state in state_batches or []], {"n": np.full(len(summed), len(summed))}


def adding():
    return Adding(BOX, TWO, CONFIG)


def test_an_input_dict_is_taken_apart():
    policy = adding()
    columns = {"obs": np.ones((2, 3)), "state_in_1": np.array([5, 5]), "state_in_0": np.array([1, 1])}
    more = {"prev_actions": [3, 4], "prev_rewards": [0, 1], "infos": [{}, {}]}
    actions, states, extra = policy.compute_actions_from_input_dict({**columns, **more}, False, 7, ["e", "f"])
    assert actions.tolist() == [3, 3]
    assert [state.tolist() for state in states] == [[2, 2], [6, 6]]
    assert extra["n"].tolist() == [2, 2]
    expected = {"prev_action_batch": [3, 4], "prev_reward_batch": [0, 1], "info_batch": [{}, {}]}
    assert policy.given == {**expected, "explore": False, "timestep": 7, "episodes": ["e", "f"]}


def test_a_single_action_is_that_of_a_batch_of_one():
    policy = adding()
    action, states, extra = policy.compute_single_action(
        np.ones(3), [np.array([4.0])], prev_action=1, prev_reward=0.5, info={"a": 1}, episode="e", explore=True
    )
    assert (action, states[0].tolist(), extra) == (3, [5.0], {"n": 1})
    assert policy.given["prev_action_batch"].tolist() == [1]
    assert (policy.given["info_batch"], policy.given["episodes"]) == ([{"a": 1}], ["e"])
    again = policy.compute_single_action(input_dict={"obs": np.ones(3), "state_in_0": np.array([4.0])})
    assert (again[0], again[1][0].tolist()) == (3, [5.0])
    with pytest.raises(ValueError, match="needs obs or input_dict"):
        policy.compute_single_action()


def test_learning_is_gradients_and_then_their_use():
    policy = adding()
    policy.compute_gradients = lambda batch: ([len(batch)], {"learner_stats": {"n": len(batch)}})
    policy.apply_gradients = lambda gradients: setattr(policy, "weight", sum(gradients))
    assert policy.learn_on_batch([1, 2, 3]) == {"learner_stats": {"n": 3}}
    assert policy.weight == 3


def test_optional_columns_are_asked_for_by_view_requirements_and_other_columns_and_steps_refused():
    bare = adding().view_requirements
    assert WantedColumns.of(bare).input == {"prev_actions", "prev_rewards"}
    bare["infos"].used_for_training = True
    bare["prev_actions"] = ViewRequirement("actions", shift=-1, used_for_compute_actions=False)
    wanted = WantedColumns.of(bare)
    assert wanted == WantedColumns(frozenset(["prev_rewards"]), frozenset(["prev_actions", "prev_rewards", "infos"]))
    refused = {
        "next_rewards": ViewRequirement("rewards", shift=1),
        "infos": ViewRequirement(shift=-1),
        "agent_id": ViewRequirement(index=3),
        "env_id": ViewRequirement(batch_repeat_value=2),
        "prev_rewards": ViewRequirement("rewards", shift="-5:-1"),
    }
    for name, view in refused.items():
        with pytest.raises(ValueError, match=rf"view_requirements\['{name}'\]"):
            WantedColumns.of({name: view})


def test_view_requirements_take_the_arguments_of_rllib_in_its_order():
    space = spaces.Discrete(3)
    view = ViewRequirement("obs", space, [-1, 0], 5, 20, False, True)
    assert (view.data_col, view.space, view.shift, view.index) == ("obs", space, [-1, 0], 5)
    assert (view.batch_repeat_value, view.used_for_compute_actions, view.used_for_training) == (20, False, True)
    assert ViewRequirement().space == spaces.Box(-np.inf, np.inf, ())


DESCRIBED = [
    spaces.Box(np.array([-1.0, 0.0]), np.array([0.0, 9.0]), dtype=np.float64),
    spaces.Box(0, 255, (2, 2), np.uint8),
    spaces.Discrete(5, start=-2),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 3]),
    spaces.MultiDiscrete([2, 7]),
    spaces.MultiDiscrete([2, 7], start=[1, -1]),
    spaces.Text(4, min_length=2, charset="abc"),
    spaces.Dict(b=spaces.Discrete(3), a=spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Discrete(2)])),
]


@pytest.mark.parametrize("space", [None, *DESCRIBED])
def test_view_requirements_survive_json(space):
    view = ViewRequirement("obs", space, [-1], used_for_training=False)
    description = view.to_dict()
    assert ViewRequirement.from_dict(json.loads(json.dumps(description))) == view
    assert ViewRequirement.from_dict(description) == view
    assert description == view.to_dict()


def test_a_space_that_json_cannot_hold_is_named():
    with pytest.raises(ValueError, match="Graph"):
        ViewRequirement(space=spaces.Graph(spaces.Discrete(2), None)).to_dict()
    with pytest.raises(ValueError, match="space='cube'"):
        ViewRequirement.from_dict({"data_col": "obs", "space": {"space": "cube"}})


SPACES = {
    "discrete": spaces.Discrete(5, start=2),
    "multi": spaces.MultiDiscrete([2, 7]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-1.0, 0.0]), np.array([0.0, 9.0]), dtype=np.float64),
    "nested": spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Discrete(2)])),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_random_actions_are_of_the_space_and_of_torchs_generator(space):
    policy = RandomPolicy(BOX, space, CONFIG)
    torch.manual_seed(5)
    single = [policy.compute_single_action(np.zeros(3))[0] for _ in range(20)]
    assert all(action in space for action in single)
    assert len({str(action) for action in single}) > 1
    torch.manual_seed(5)
    np.testing.assert_equal(policy.compute_single_action(np.zeros(3))[0], single[0])
    assert policy.learn_on_batch(None) == {}


def test_bounds_of_a_box_can_be_ignored_and_envs_get_actions_within_them():
    space = spaces.Box(0, 10, (2,))
    make = lambda: RandomEnv({"action_space": space, "check_action_bounds": True})
    with made_of(make, RandomPolicy, clip_actions=True, ignore_action_bounds=True) as worker:
        assert not all(action in space for action in worker.sample()["actions"])
    unbounded = RandomPolicy(BOX, spaces.Box(0, 1, (2,), dtype=np.int64), {"ignore_action_bounds": True})
    assert np.abs(unbounded.compute_actions(np.zeros((10, 3)))[0]).max() > 1


F = 6
ACTED = spaces.Box(-2, 3, (1,), np.int32)


def sampled(overrides, **settings):
    """Return batches of a policy with overrides and of another, the actions envs got from the first, its filter."""
    pay = lambda env, answer: answer[1].update({0: 3.0, 1: 3.0})
    config = AlgorithmConfig().update_from_dict({"rollout_fragment_length": F, "seed": 1, **settings})
    config.multi_agent(policies={"p0": PolicySpec(config=AlgorithmConfig.overrides(**overrides)), "p1": PolicySpec()})
    config.multi_agent(policy_mapping_fn=by_parity)
    make = lambda _: Agents(2, F + 1, ACTED, pay)
    with RolloutWorker(env_creator=make, default_policy_class=PPOTorchPolicy, config=config) as worker:
        batch, got = worker.sample(), worker.env.got
        return batch["p0"], batch["p1"], np.array([actions[0] for actions in got]), worker.filters["p0"]


def modes(batch):
    """The most probable of 6 actions, counted from 0."""
    return batch["action_dist_inputs"].argmax(axis=1)[:, None]


def test_a_policy_explores_sees_acts_and_is_paid_as_its_own_config_says():
    mine, others, _, _ = sampled({"explore": False, "clip_rewards": 2.0})
    np.testing.assert_array_equal(mine["actions"], modes(mine))
    assert (others["actions"] != modes(others)).any(), "the other one explores as before"
    assert (set(mine["rewards"]), set(others["rewards"])) == ({2.0}, {3.0})
    mine, _, got, kept = sampled({"normalize_actions": False, "observation_filter": "MeanStdFilter"})
    np.testing.assert_array_equal(got, mine["actions"])
    assert all(ACTED.contains(action) for action in got)
    assert (type(kept), kept.running_stats.n) == (MeanStdFilter, F + 1)
    assert type(sampled({"observation_filter": "NoFilter"}, observation_filter="MeanStdFilter")[-1]) is NoFilter


def test_random_actions_span_the_space_and_envs_get_them_unchanged():
    space = spaces.Dict({"a": spaces.Box(20.0, 30.0, (1,)), "b": spaces.Box(250, 255, (1,), np.uint8)})
    with made_of(lambda: Agents(1, 0, space), RandomPolicy, rollout_fragment_length=400, seed=1) as worker:
        batch = worker.sample()
        got = [actions[0] for actions in worker.env.got]
    np.testing.assert_array_equal(batch["actions"]["a"], [action["a"] for action in got])
    a, b = (np.array([action[name] for action in got]) for name in "ab")
    assert all(space.contains(action) for action in got)
    assert np.histogram(a, bins=5, range=(20, 30))[0].min() > 40
    assert np.bincount(b.ravel() - 250, minlength=6).min() > 30


SPEC, BY_ID, AGENTS, ENV, ELSEWHERE, OWN = (spaces.Discrete(n) for n in range(2, 8))


class Act:
    pass


def one_agent(space):
    """Looks like a gymnasium env."""
    return SimpleNamespace(observation_space=space, action_space=space)


def agents(space_of, told_by="possible_agents"):
    """Looks like a wrapped multi-agent env; nothing of a base class was initialised."""
    ids = (lambda: set(space_of)) if told_by == "get_agent_ids" else list(space_of)
    methods = {"get_observation_space": space_of.__getitem__, "get_action_space": space_of.__getitem__, told_by: ids}
    return SimpleNamespace(unwrapped=SimpleNamespace(**methods))


def setup(config=None, **around):
    return (config or AlgorithmConfig()).get_multi_agent_setup(**{"default_policy_class": Act, **around})[0]


PLACES = {
    "its spec": SPEC,
    "spaces[pid]": BY_ID,
    "the env's agents": AGENTS,
    "the env": ENV,
    'spaces["__env__"]': ELSEWHERE,
    "the config": OWN,
}


@pytest.mark.parametrize("first", PLACES)
def test_a_space_comes_from_the_first_place_that_has_one(first):
    places = list(PLACES)[list(PLACES).index(first) :]
    config = AlgorithmConfig().environment(observation_space=OWN, action_space=OWN)
    by_id = {"__env__": 'spaces["__env__"]', "p": "spaces[pid]"}
    by_policy = {key: (PLACES[place], PLACES[place]) for key, place in by_id.items() if place in places}
    env = one_agent(ENV) if first == "the env" else agents({0: AGENTS}) if "the env's agents" in places else None
    config.multi_agent({"p": PolicySpec(None, SPEC, SPEC) if "its spec" in places else PolicySpec()})
    spec = setup(config, env=env, spaces=by_policy)["p"]
    assert (spec.observation_space, spec.action_space) == (PLACES[first], PLACES[first])


@pytest.mark.parametrize("told_by", ["possible_agents", "agents", "get_agent_ids"])
def test_agents_of_a_policy_lend_it_their_space(told_by):
    env = agents({0: SPEC, 1: ENV, "two": SPEC}, told_by)
    config = AlgorithmConfig().multi_agent({"odd", "even"}, policy_mapping_fn=lambda a, _: "odd" if a == 1 else "even")
    found = {pid: (spec.observation_space, spec.action_space) for pid, spec in setup(config, env=env).items()}
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


def test_classes_and_settings_of_a_spec_come_first_and_whole_configs_are_unchanged():
    config_of_c = AlgorithmConfig().training(gamma=0.5)
    config = AlgorithmConfig().training(lr=0.5, gamma=0.1)
    policies = {
        "a": (dict,),
        "b": PolicySpec(config=AlgorithmConfig.overrides(lr=0.25)),
        "c": PolicySpec(config=config_of_c),
    }
    config.multi_agent(policies).freeze()
    specs = setup(config, env=one_agent(ENV))
    assert [spec.policy_class for spec in specs.values()] == [dict, Act, Act]
    assert [(spec.config.lr, spec.config.gamma) for spec in specs.values()] == [(0.5, 0.1), (0.25, 0.1), (0.001, 0.5)]
    assert (specs["c"].config is config_of_c, specs["a"].config.is_frozen) == (True, False)


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


def test_a_mapping_gets_the_worker_if_it_takes_one_and_a_spec_survives_pickling():
    for function in (lambda agent, episode, *, worker: worker, lambda *args, **kwargs: kwargs["worker"]):
        assert with_worker_argument(function)("agent", "episode", worker="worker") == "worker"
    for function in (lambda agent_id, episode: episode, lambda *args: args[-1]):
        assert with_worker_argument(function)("agent", "episode", worker="worker") == "episode"
    spec = PolicySpec(RandomPolicy, SPEC, ENV, {"lr": 1})
    assert PolicySpec.deserialize(pickle.loads(pickle.dumps(spec.serialize()))) == spec


class BySides(MultiAgentEnv):
    """Two agents with a space each; maybe it says them as one."""

    observation_spaces, action_spaces = {"left": BY_ID, "right": AGENTS}, {"left": BY_ID, "right": BY_ID}

    def __init__(self, **attributes):
        self.agents = ["left", "right"]
        for name, space in attributes.items():
            setattr(self, name, space)
        super().__init__()

    def reset(self, *, seed=None, options=None):
        return {"left": BY_ID.sample()}, {}


AS_ONE = spaces.Dict(left=BY_ID, right=AGENTS)


@pytest.mark.parametrize(("attributes", "expected"), [({}, AS_ONE), ({"observation_space": ENV}, ENV)])
def test_the_space_of_an_env_with_a_space_per_agent_is_a_dict_by_agent(attributes, expected):
    config = AlgorithmConfig().multi_agent({"left", "right"}, policy_mapping_fn=lambda agent, *_, **__: agent)
    with RolloutWorker(
        env_creator=lambda _: BySides(**attributes), default_policy_class=RandomPolicy, config=config
    ) as worker:
        worker_spaces = pickle.loads(pickle.dumps(worker.get_spaces()))
        assert worker_spaces["__env__"] == (expected, spaces.Dict(left=BY_ID, right=BY_ID))
        assert worker.async_env.observation_space == expected
        assert (worker_spaces["left"], worker_spaces["right"]) == ((BY_ID, BY_ID), (AGENTS, BY_ID))
