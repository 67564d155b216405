"""Settings in a policy's own config of what the worker does for it, where they are other than the worker's."""

import numpy as np
from gymnasium import spaces
from rw_toys import Agents, by_parity, made_of

from swath.rollout_workers import (
    AlgorithmConfig,
    PolicySpec,
    PPOTorchPolicy,
    RandomPolicy,
    RolloutWorker,
)
from swath.rollout_workers.filters import MeanStdFilter, NoFilter

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
        worker.sample()
        got = [actions[0] for actions in worker.env.got]
    a, b = (np.array([action[name] for action in got]) for name in "ab")
    assert all(space.contains(action) for action in got)
    assert np.histogram(a, bins=5, range=(20, 30))[0].min() > 40
    assert np.bincount(b.ravel() - 250, minlength=6).min() > 30
