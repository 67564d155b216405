"""What a sampler of several agents hands out, against one that goes from dict to dict in plain loops."""

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import Counter, Troupe

from mock_envs import (
    BasicMultiAgent,
    EarlyDoneMultiAgent,
    FlexAgentsMultiAgent,
    MultiAgentCartPole,
    RandomMultiAgentEnv,
    RoundRobinMultiAgent,
    SometimesZeroAgentsMultiAgent,
)
from swath.rollout_workers import MultiAgentEnv


class Whimsical(MultiAgentEnv):
    """Whom it shows, pays and ends is drawn in each step, also of agents that nobody has seen, or that have ended."""

    def __init__(self):
        self.agents = list(range(5))
        self.observation_space, self.action_space = gym.spaces.Box(0, 9, (2,), np.float32), gym.spaces.Discrete(2)
        super().__init__()

    def _some(self, probability):
        return [agent for agent in self.agents if self.np_random.random() < probability]

    def _show(self, agents):
        seen = {agent: self.np_random.random(2, np.float32) for agent in agents}
        return seen, {agent: {"told": self.np_random.random()} for agent in seen if self.np_random.random() < 0.5}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._show([2, *self._some(0.3)])

    def step(self, action_dict):
        seen, infos = self._show(self._some(0.4))
        rewards = {agent: self.np_random.random() for agent in self._some(0.5)}
        flags = [{agent: bool(self.np_random.random() < 0.3) for agent in self._some(0.2)} for _ in range(2)]
        for each in flags:
            each["__all__"] = bool(self.np_random.random() < 0.04)
        return seen, rewards, *flags, infos


ENVS = {
    "whimsical": Whimsical,
    "basic": lambda: BasicMultiAgent(3),
    "early_done": EarlyDoneMultiAgent,
    "flexible": FlexAgentsMultiAgent,
    "sometimes_none": lambda: SometimesZeroAgentsMultiAgent(4),
    "in_turn": lambda: RoundRobinMultiAgent(3, increment_obs=True),
    "cart_pole": lambda: MultiAgentCartPole({"num_agents": 3}),
    "random": lambda: RandomMultiAgentEnv({"num_agents": 2, "p_terminated": 0.3}),
}
N, F, CALLS = 5, 40, 3
ROW = ("obs", "actions", "prev_actions", "prev_rewards", "agent_id", "agent_index")


def policy_of(agent, episode=None):
    return f"p{agent % 2}"


def answer(obs):
    return int(np.argmax(obs) % 2)


class Reader(Counter):
    """Answers by what it sees."""

    wanted = ("prev_actions", "prev_rewards", "infos", "env_id", "agent_id")

    def compute_actions(self, obs_batch, state_batches=None, **given):
        return [answer(obs) for obs in obs_batch], [], {}


def seen(space, obs):
    return np.eye(space.n, dtype=np.float32)[obs] if isinstance(space, gym.spaces.Discrete) else np.asarray(obs)


class Story:
    """An episode, dict by dict."""

    def __init__(self, env, number, seed):
        self.env, self.number = env, number
        self.order, self.last, self.told = [], {}, {}
        self.open, self.before, self.ended, self.t = {}, {}, set(), 0
        raw, infos = env.reset(seed=seed)
        self.due = {agent: self.see(agent, value) for agent, value in raw.items()}
        self.told = {agent: infos.get(agent, {}) for agent in raw}

    def see(self, agent, value):
        space = self.env.get_observation_space(agent)
        one_hot = isinstance(space, gym.spaces.Discrete)
        self.last[agent] = np.eye(space.n, dtype=np.float32)[value] if one_hot else np.asarray(value)
        if agent not in self.order:
            self.order.append(agent)
        return self.last[agent]

    def act(self):
        actions = {agent: answer(value) for agent, value in self.due.items()}
        for agent, value in self.due.items():
            done = self.before.get(agent, (0, 0.0))
            facts = (value, actions[agent], *done, agent, self.order.index(agent))
            self.open[agent] = {**dict(zip(ROW, facts, strict=True)), "rewards": 0.0}
        return actions

    def step(self):
        """The rows that the step closes, and whether the episode is over."""
        raw, rewards, *flags, infos = self.env.step(self.act())
        self.told.update({agent: infos.get(agent, {}) for agent in raw})
        for agent in rewards.keys() & self.open.keys():
            self.open[agent]["rewards"] += rewards[agent]
        ends = {
            agent: tuple(bool(each["__all__"] or each.get(agent, False)) for each in flags)
            for agent in {*raw, *flags[0], *flags[1], *self.open} - {"__all__"}
        }
        known = [agent for agent in raw if agent not in self.ended and (agent in self.order or not any(ends[agent]))]
        seen = {agent: self.see(agent, raw[agent]) for agent in known}
        self.due = {agent: value for agent, value in seen.items() if not any(ends[agent])}
        rows = [self.close(agent, ends[agent]) for agent in list(self.open) if agent in raw or any(ends[agent])]
        self.ended |= {agent for agent, end in ends.items() if any(end) and agent in self.order}
        self.t += 1
        return rows, flags[0]["__all__"] or flags[1]["__all__"]

    def close(self, agent, ends):
        row = self.open.pop(agent)
        self.before[agent] = (row["actions"], row["rewards"])
        row |= {"new_obs": self.last[agent], "t": self.t, "env_id": self.number, "infos": self.told[agent]}
        return {**row, "terminateds": ends[0], "truncateds": ends[1]}


def reference(env, number, seed):
    """F · CALLS steps of an env, as rows by call, each with the number of its episode."""
    calls, episode, story = [[] for _ in range(CALLS)], 0, Story(env, number, seed)
    for clock in range(F * CALLS):
        rows, over = story.step()
        calls[clock // F] += [(episode, row) for row in rows]
        if over:
            episode, story = episode + 1, Story(env, number, None)
    return calls


def in_order(rows):
    return [row for _, row in sorted(rows, key=lambda pair: (pair[0], pair[1]["agent_index"], pair[1]["t"]))]


@pytest.mark.parametrize("name", ENVS)
def test_rows_are_those_of_plain_loops_by_sub_env_episode_agent_and_time(name):
    expected = [reference(ENVS[name](), number, seed=5 + number) for number in range(N)]
    policies = {"p0": Reader, "p1": Reader}
    troupe = Troupe(ENVS[name], N, policies, policy_of, seed=5, rollout_fragment_length=F)
    n_rows = 0
    for call in range(CALLS):
        batch = troupe.sample()
        assert batch.env_steps() == N * F
        for pid in policies:
            rows = [row for env in expected for row in in_order(env[call]) if policy_of(row["agent_id"]) == pid]
            n_rows += len(rows)
            if not rows:
                assert pid not in batch.policy_batches
                continue
            made = batch[pid]
            for column in rows[0]:
                wanted = np.array([row[column] for row in rows], dtype=made[column].dtype)
                np.testing.assert_array_equal(made[column], wanted, err_msg=f"{column} of {pid} in call {call}")
            assert made["obs"].dtype == np.float32
            assert made["rewards"].dtype == np.float32
            changes = made["eps_id"][1:] != made["eps_id"][:-1]
            changes |= made["agent_index"][1:] != made["agent_index"][:-1]
            np.testing.assert_array_equal(made["unroll_id"][1:] != made["unroll_id"][:-1], changes)
    assert n_rows > 50
