"""A PettingZoo env whose numbers identify agent and step, and whose agents leave one after another."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

LIVES = {"cow_0": 2, "cow_1": 4, "dog": 3}
"""Number of steps of each agent."""

NUMBER = {agent: number for number, agent in enumerate(LIVES)}
LENGTH = max(LIVES.values())


class Herd(ParallelEnv):
    """Observations are `[agent, seed, episode, step]`, rewards `100·agent + 10·step + action`.

    Cows are terminated, the dog is truncated.
    """

    metadata = {"name": "herd_v0", "render_modes": []}

    def __init__(self, dogs_actions=5):
        self.possible_agents = [*LIVES]
        self.agents = []
        self.heard = []
        self.dogs_actions = dogs_actions
        self.seed, self.episode, self.closed = -1, -1, False

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(self.dogs_actions if agent == "dog" else 3)

    def reset(self, seed=None, options=None):
        self.seed = self.seed if seed is None else seed % 1000
        self.agents, self.step_number = [*LIVES], 0
        self.episode += 1
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.heard.append(dict(actions))
        acted, self.step_number = self.agents, self.step_number + 1
        over = {agent: LIVES[agent] == self.step_number for agent in acted}
        self.agents = [agent for agent in acted if not over[agent]]
        rewards = {agent: 100.0 * NUMBER[agent] + 10 * self.step_number + int(actions[agent]) for agent in acted}
        ended = {agent: over[agent] and agent != "dog" for agent in acted}
        cut = {agent: over[agent] and agent == "dog" for agent in acted}
        return self._seen(acted), rewards, ended, cut, {agent: {} for agent in acted}

    def close(self):
        self.closed = True

    def _seen(self, agents):
        return {
            agent: np.array([NUMBER[agent], self.seed, self.episode, self.step_number], np.float32) for agent in agents
        }


class MaskedHerd(Herd):
    """A herd with action masks: each agent must take the action with the number of the step."""

    def observation_space(self, agent):
        plain = super().observation_space(agent)
        return spaces.Dict(observation=plain, action_mask=spaces.MultiBinary(int(self.action_space(agent).n)))

    def _seen(self, agents):
        return {
            agent: {"observation": observation, "action_mask": self._allowed(agent)}
            for agent, observation in super()._seen(agents).items()
        }

    def _allowed(self, agent):
        allowed = np.zeros(self.action_space(agent).n, np.int8)
        allowed[self.step_number % len(allowed)] = 1
        return allowed
