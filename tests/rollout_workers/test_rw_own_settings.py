"""Settings in a policy's own config of what the worker does for it, where they are other than the worker's."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from swath.rollout_workers import (
    AlgorithmConfig,
    MultiAgentEnv,
    PolicySpec,
    PPOTorchPolicy,
    RandomPolicy,
    RolloutWorker,
)
from swath.rollout_workers.filters import MeanStdFilter, NoFilter

F = 6
SEEN, ACTED = spaces.Box(-9.0, 9.0, (2,), np.float64), spaces.Box(-2, 3, (1,), np.int32)


class Together(MultiAgentEnv):
    """Pays two agents 3 each, and notes the actions of the first."""

    observation_space, action_space = SEEN, ACTED
    agents = possible_agents = ("own", "other")

    def __init__(self, notes):
        self.notes = notes

    def reset(self, *, seed=None, options=None):
        return dict.fromkeys(self.agents, np.ones(2)), {}

    def step(self, actions):
        self.notes.append(actions["own"])
        over = {"__all__": False}
        return dict.fromkeys(self.agents, np.ones(2)), dict.fromkeys(self.agents, 3.0), over, over, {}


def sampled(own, **settings):
    """Batches of a policy with settings of its own and of another, actions that the env got, and its filter."""
    notes = []
    config = AlgorithmConfig().update_from_dict({"rollout_fragment_length": F, "seed": 1, **settings})
    config.multi_agent(policies={"own": PolicySpec(config=AlgorithmConfig.overrides(**own)), "other": PolicySpec()})
    config.multi_agent(policy_mapping_fn=lambda agent, *_, **__: agent)
    with RolloutWorker(
        env_creator=lambda _: Together(notes), default_policy_class=PPOTorchPolicy, config=config
    ) as worker:
        batch = worker.sample()
        return batch["own"], batch["other"], np.array(notes), worker.filters["own"]


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


class Far(gym.Env):
    """Wants numbers far from 0, of integers and not, and notes them."""

    observation_space = SEEN
    action_space = spaces.Dict({"a": spaces.Box(20.0, 30.0, (1,)), "b": spaces.Box(250, 255, (1,), np.uint8)})

    def __init__(self, notes):
        self.notes = notes

    def reset(self, *, seed=None, options=None):
        return np.ones(2), {}

    def step(self, action):
        self.notes.append(action)
        return np.ones(2), 3.0, False, False, {}


def test_random_actions_span_the_space_and_envs_get_them_as_they_are():
    notes: list = []
    config = AlgorithmConfig().env_runners(rollout_fragment_length=400).debugging(seed=1)
    with RolloutWorker(env_creator=lambda _: Far(notes), default_policy_class=RandomPolicy, config=config) as worker:
        assert worker.config.normalize_actions
        worker.sample()
    a, b = (np.array([action[name] for action in notes]) for name in "ab")
    assert all(Far.action_space.contains(action) for action in notes)
    assert np.histogram(a, bins=5, range=(20, 30))[0].min() > 40
    assert np.bincount(b.ravel() - 250, minlength=6).min() > 30
