"""PettingZoo's envs as multi-agent envs: the next agent, rewards, and the end of episodes."""

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import made_of

from swath.rollout_workers import ParallelPettingZooEnv, PettingZooEnv, RandomPolicy

zoo = pytest.importorskip("pettingzoo")
parallel_to_aec = pytest.importorskip("pettingzoo.utils.conversions").parallel_to_aec

ENDS = {"a": 2, "b": 3, "c": 3}
"""Steps after which agents end."""


class Walk(zoo.ParallelEnv):
    """Agents count their steps, and are paid what they do; they end one after another, some by being truncated."""

    metadata = {"name": "walk"}
    render_mode = None

    def __init__(self, truncated=()):
        self.possible_agents, self.truncated, self.resets = list(ENDS), truncated, []

    def observation_space(self, agent):
        return gym.spaces.Discrete(10)

    def action_space(self, agent):
        return gym.spaces.Discrete(5)

    def reset(self, seed=None, options=None):
        self.resets.append((seed, options))
        self.agents, self.at = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, 0), {agent: {"at": 0} for agent in self.agents}

    def step(self, actions):
        assert actions.keys() == set(self.agents)
        self.at += 1
        acting, over = self.agents, {agent: ENDS[agent] == self.at for agent in self.agents}
        self.agents = [agent for agent in acting if not over[agent]]
        rewards = {agent: float(actions[agent]) for agent in acting}
        terminateds = {agent: over[agent] and agent not in self.truncated for agent in acting}
        truncateds = {agent: over[agent] and agent in self.truncated for agent in acting}
        infos = {agent: {"at": self.at} for agent in acting}
        return dict.fromkeys(acting, self.at), rewards, terminateds, truncateds, infos


def test_agents_act_together_until_none_is_left():
    env = ParallelPettingZooEnv(Walk())
    assert env.reset(seed=3, options={"a": 1}) == (dict.fromkeys("abc", 0), {agent: {"at": 0} for agent in "abc"})
    assert (env.par_env.resets, env.agents) == ([(3, {"a": 1})], ["a", "b", "c"])
    first = env.step({"a": 1, "b": 2, "c": 3})
    assert first[1] == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert first[2:4] == ({"a": False, "b": False, "c": False, "__all__": False},) * 2
    second = env.step({"a": 1, "b": 2, "c": 3})
    assert second[2] == {"a": True, "b": False, "c": False, "__all__": False}
    assert (second[0]["a"], env.agents) == (2, ["b", "c"])
    third = env.step({"b": 2, "c": 3})
    assert third[2] == {"b": True, "c": True, "__all__": True}
    assert (third[3]["__all__"], env.agents) == (False, [])


@pytest.mark.parametrize("truncated", ["a", "c", "abc"])
def test_an_episode_in_which_one_agent_was_truncated_is_truncated_and_the_next_is_another(truncated):
    env = ParallelPettingZooEnv(Walk(truncated))
    flags = []
    for _ in range(2):
        env.reset()
        while env.agents:
            _, _, terminateds, truncateds, _ = env.step(dict.fromkeys(env.agents, 0))
        flags.append((terminateds["__all__"], truncateds["__all__"]))
        env.par_env.truncated = ()
    assert flags == [(False, True), (True, False)]


class ByAgent(RandomPolicy):
    """Acts by what it sees, so that it acts alike wherever it does."""

    def compute_actions(self, obs_batch, *args, **kwargs):
        return obs_batch.argmax(axis=1) + 1, [], {}


def test_envs_of_the_zoo_wrap_themselves_and_agents_in_turn_make_the_same_transitions_as_together():
    def sampled(make, length):
        with made_of(make, ByAgent, rollout_fragment_length=length) as worker:
            return worker.sample()

    together, turns = sampled(Walk, 3), sampled(lambda: parallel_to_aec(Walk()), 8)
    assert np.bincount(together["agent_index"]).tolist() == list(ENDS.values())
    for name in ("agent_index", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"):
        np.testing.assert_array_equal(turns[name], together[name], err_msg=name)
    env = PettingZooEnv(parallel_to_aec(Walk()))
    env.reset(seed=1)
    with pytest.raises(ValueError, match=r"agent 'a' is next, but there are actions of \['b'\]"):
        env.step({"b": 0})
