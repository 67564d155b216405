"""PettingZoo's envs as multi-agent envs: whose turn it is, who is paid what, and when it is over."""

import gymnasium as gym
import numpy as np
import pytest
from sampling_toys import made_of

from agents_protocol import check_reset, check_step
from swath.rollout_workers import ParallelPettingZooEnv, PettingZooEnv, RandomPolicy

zoo = pytest.importorskip("pettingzoo")

ENDS = {"a": 2, "b": 3, "c": 3}
"""Steps after which agents end."""


class Walk(zoo.ParallelEnv):
    """Agents count their steps, and are paid what they do; they end one after another.

    Args:
        truncated: agents whose end is a truncation.
    """

    metadata = {"name": "walk"}

    def __init__(self, truncated=()) -> None:
        self.possible_agents = list(ENDS)
        self.truncated = truncated
        self.resets = []

    def observation_space(self, agent):
        return gym.spaces.Discrete(10)

    def action_space(self, agent):
        return gym.spaces.Discrete(5)

    def reset(self, seed=None, options=None):
        self.resets.append((seed, options))
        self.agents = list(self.possible_agents)
        self.at = 0
        return dict.fromkeys(self.agents, 0), {agent: {"at": 0} for agent in [*self.agents, "nobody"]}

    def step(self, actions):
        assert actions.keys() == set(self.agents)
        self.at += 1
        acting, over = self.agents, {agent: ENDS[agent] == self.at for agent in self.agents}
        self.agents = [agent for agent in acting if not over[agent]]
        return (
            dict.fromkeys(acting, self.at),
            {agent: float(actions[agent]) for agent in acting},
            {agent: over[agent] and agent not in self.truncated for agent in acting},
            {agent: over[agent] and agent in self.truncated for agent in acting},
            {agent: {"at": self.at} for agent in acting},
        )


class Turns(zoo.AECEnv):
    """Agents act in turn, each action pays its number to all agents; each acts twice, then the others go as well."""

    metadata = {"name": "turns"}
    render_mode = None

    def __init__(self, truncates=False) -> None:
        super().__init__()
        self.possible_agents = ["a", "b"]
        self.truncates = truncates

    def observation_space(self, agent):
        return gym.spaces.Discrete(10)

    def action_space(self, agent):
        return gym.spaces.Discrete(5)

    def observe(self, agent):
        return self.acted[agent]

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.acted = dict.fromkeys(self.agents, 0)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"who": agent} for agent in self.agents}
        self.agent_selection = "a"

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self.acted[agent] += 1
        self.rewards = dict.fromkeys(self.agents, float(action))
        if all(acted == 2 for acted in self.acted.values()):
            self.terminations = {"a": True, "b": not self.truncates}
            self.truncations["b"] = self.truncates
        self.agent_selection = "b" if agent == "a" else "a"
        self._accumulate_rewards()


def test_agents_act_together_until_none_is_left():
    env = ParallelPettingZooEnv(Walk())
    obs, infos = env.reset(seed=3, options={"a": 1})
    assert (obs, infos) == ({"a": 0, "b": 0, "c": 0}, {agent: {"at": 0} for agent in "abc"})
    assert env.par_env.resets == [(3, {"a": 1})]
    assert env.agents == ["a", "b", "c"]
    first = env.step({"a": 1, "b": 2, "c": 3})
    check_step(first)
    assert first[1] == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert first[2:4] == ({"a": False, "b": False, "c": False, "__all__": False},) * 2
    second = env.step({"a": 1, "b": 2, "c": 3})
    assert second[2] == {"a": True, "b": False, "c": False, "__all__": False}
    assert (second[0]["a"], env.agents) == (2, ["b", "c"])
    third = env.step({"b": 2, "c": 3})
    assert third[2] == {"b": True, "c": True, "__all__": True}
    assert third[3]["__all__"] is False
    assert env.agents == []


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


def test_agents_in_turn_are_observed_with_what_they_were_paid_since_they_acted():
    env = PettingZooEnv(Turns())
    reset = env.reset(seed=1)
    check_reset(*reset)
    assert reset == ({"a": 0}, {"a": {"who": "a"}})
    assert env.agents == ["a", "b"]
    first = env.step({"a": 1})
    check_step(first)
    assert first[:2] == ({"b": 0}, {"b": 1.0})
    assert env.step({"b": 2})[:2] == ({"a": 1}, {"a": 3.0})
    assert env.step({"a": 3})[:2] == ({"b": 1}, {"b": 5.0})
    last = env.step({"b": 4})
    check_step(last)
    assert last[:2] == ({"a": 2, "b": 2}, {"a": 7.0, "b": 4.0})
    assert last[2] == {"a": True, "b": True, "__all__": True}
    assert last[3]["__all__"] is False
    assert env.agents == []


def test_an_action_of_somebody_else_is_refused():
    env = PettingZooEnv(Turns())
    env.reset()
    with pytest.raises(ValueError, match=r"it is 'a' whose turn it is, but there are actions of \['b'\]"):
        env.step({"b": 0})


@pytest.mark.parametrize(("make", "rows"), [(Walk, [2, 3, 3]), (Turns, [2, 2])])
def test_envs_of_the_zoo_wrap_themselves_in_a_worker(make, rows):
    with made_of(make, RandomPolicy, batch_mode="complete_episodes", rollout_fragment_length=1) as worker:
        batch = worker.sample()
    assert np.bincount(batch["agent_index"]).tolist() == rows
    assert batch["terminateds"].sum() == len(rows)
