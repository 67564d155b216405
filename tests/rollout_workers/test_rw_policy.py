"""What every policy has, those that are random, and settings in a policy's own config."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rw_toys import Agents, by_parity, made_of

from mock_envs import RandomEnv
from swath.rollout_workers import (
    AlgorithmConfig,
    Policy,
    PolicySpec,
    PPOTorchPolicy,
    RandomPolicy,
    RolloutWorker,
    ViewRequirement,
)
from swath.rollout_workers.batches.names import WantedColumns
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
    assert policy.given["info_batch"] == [{"a": 1}]
    assert policy.given["episodes"] == ["e"]
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
    for name, view in (("next_rewards", ViewRequirement("rewards", shift=1)), ("infos", ViewRequirement(shift=-1))):
        with pytest.raises(ValueError, match=rf"view_requirements\['{name}'\]"):
            WantedColumns.of({name: view})


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
    config = AlgorithmConfig().env_runners(rollout_fragment_length=50).environment(clip_actions=True)
    config.update_from_dict({"ignore_action_bounds": True})
    given = {"action_space": space, "check_action_bounds": True}
    with RolloutWorker(env_creator=lambda _: RandomEnv(given), default_policy_class=RandomPolicy, config=config) as one:
        assert not all(action in space for action in one.sample()["actions"])
    whole = RandomPolicy(BOX, spaces.Box(0, 1, (2,), dtype=np.int64), {"ignore_action_bounds": True})
    assert np.abs(whole.compute_actions(np.zeros((10, 3)))[0]).max() > 1


F = 6
ACTED = spaces.Box(-2, 3, (1,), np.int32)


def sampled(own, **settings):
    """Batches of a policy with settings of its own and of another, actions that the first got from it, its filter."""
    pay = lambda env, answer: answer[1].update({0: 3.0, 1: 3.0})
    config = AlgorithmConfig().update_from_dict({"rollout_fragment_length": F, "seed": 1, **settings})
    config.multi_agent(policies={"p0": PolicySpec(config=AlgorithmConfig.overrides(**own)), "p1": PolicySpec()})
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


def test_random_actions_span_the_space_and_envs_get_them_as_they_are():
    space = spaces.Dict({"a": spaces.Box(20.0, 30.0, (1,)), "b": spaces.Box(250, 255, (1,), np.uint8)})
    with made_of(lambda: Agents(1, 0, space), RandomPolicy, rollout_fragment_length=400, seed=1) as worker:
        batch = worker.sample()
        got = [actions[0] for actions in worker.env.got]
    np.testing.assert_array_equal(batch["actions"]["a"], [action["a"] for action in got])
    a, b = (np.array([action[name] for action in got]) for name in "ab")
    assert all(space.contains(action) for action in got)
    assert np.histogram(a, bins=5, range=(20, 30))[0].min() > 40
    assert np.bincount(b.ravel() - 250, minlength=6).min() > 30
