"""Agents that act together, come late, leave early, or are not asked for a while."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from swath.rollout.hosts.multi_agent import ALL, ByAgent, Step
from swath.rollout_workers.multi_agent_env import MultiAgentEnv
from swath.testing.envs.mock import MockEnv


class _Together(MultiAgentEnv):
    """Agents with a `MockEnv` of 25 steps each.

    Attributes:
        envs: by agent.
        resetted: whether it was ever reset.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  gymnasium's own declaration

    def __init__(self, num: int) -> None:
        self.envs = {agent: MockEnv(25) for agent in range(num)}
        self.agents = list(self.envs)
        self.observation_space = gym.spaces.Discrete(2)
        self.action_space = gym.spaces.Discrete(2)
        self.render_mode = "rgb_array"
        self.resetted = False
        self._ended: set[Any] = set()
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Reset every agent's env."""
        super().reset(seed=seed, options=options)
        self.resetted = True
        self._ended.clear()
        both = {agent: env.reset() for agent, env in self.envs.items()}
        return {agent: obs for agent, (obs, _) in both.items()}, {agent: info for agent, (_, info) in both.items()}

    def render(self) -> Any:
        """A grey picture."""
        return np.full((200, 300, 3), 128, np.uint8)

    def _act(self, action_dict: ByAgent) -> Step:
        """Step the envs of those that act; `ALL` is still missing."""
        step: Step = ({}, {}, {}, {}, {})
        for agent, action in action_dict.items():
            for column, value in zip(step, self.envs[agent].step(action), strict=True):
                column[agent] = value
        self._ended |= {agent for agent, over in step[2].items() if over}
        return step


class BasicMultiAgent(_Together):
    """Agents that all act in every step, and end together after 25.

    Args:
        num: how many.
    """

    def step(self, action_dict: ByAgent) -> Step:
        """Step those that act."""
        step = self._act(action_dict)
        step[2][ALL] = step[3][ALL] = len(self._ended) == len(self.envs)
        return step


class FlexAgentsMultiAgent(_Together):
    """Agents that come while others act, and are taken out without a last observation.

    One is there at the start, and at least one always. An episode is truncated after 50 steps.
    """

    length = 50

    def __init__(self) -> None:
        super().__init__(0)
        self.possible_agents = list(range(1 + self.length))
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin with one agent, whose id is 0."""
        self.envs = {0: MockEnv(25)}
        self._steps = 0
        self._born = 1
        self.agents = [0]
        return super().reset(seed=seed, options=options)

    def step(self, action_dict: ByAgent) -> Step:
        """Step those that act; now and then one comes, now and then one goes."""
        step = self._act(action_dict)
        obs, _, terminateds, truncateds, infos = step
        self._steps += 1
        for agent in self._ended & self.envs.keys():
            del self.envs[agent]
        if not self.envs or self.np_random.random() < 0.25:
            agent = self._born
            obs[agent], infos[agent] = self._bear()
        if len(self.envs) > 1 and self.np_random.random() < 0.5:
            gone = self._take_out()
            obs.pop(gone, None)
            infos.pop(gone, None)
            terminateds[gone] = True
        self.agents = list(self.envs)
        terminateds[ALL], truncateds[ALL] = False, self._steps >= self.length
        return step

    def _bear(self) -> tuple[Any, dict[str, Any]]:
        env = self.envs[self._born] = MockEnv(25)
        self._born += 1
        return env.reset()

    def _take_out(self) -> int:
        gone = int(self.np_random.choice(list(self.envs)))
        del self.envs[gone]
        return gone


class SometimesZeroAgentsMultiAgent(_Together):
    """Agents of which some are observed in a step, and now and then none; some are paid without being observed.

    An agent has 25 steps, and the episode is over when all have had theirs.

    Args:
        num: how many.
    """

    def __init__(self, num: int = 3) -> None:
        super().__init__(num)
        self._unseen: dict[Any, tuple[Any, dict[str, Any]]] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin with some of the agents."""
        obs, infos = super().reset(seed=seed, options=options)
        self._unseen = {agent: (obs[agent], infos[agent]) for agent in obs}
        return self._show(self._some())

    def step(self, action_dict: ByAgent) -> Step:
        """Step those that act; show some of those that wait, and pay some."""
        obs, rewards, terminateds, truncateds, infos = self._act(action_dict)
        self._unseen |= {agent: (obs[agent], infos[agent]) for agent in obs if agent not in self._ended}
        shown, told = self._show(self._some())
        rewards |= {agent: float(self.np_random.random()) for agent in self._some()}
        terminateds[ALL] = truncateds[ALL] = len(self._ended) == len(self.envs)
        return shown, rewards, terminateds, truncateds, told

    def _some(self) -> list[Any]:
        waiting = [agent for agent in self.agents if agent not in self._ended]
        return [agent for agent in waiting if self.np_random.random() < 0.5]

    def _show(self, agents: list[Any]) -> tuple[ByAgent, ByAgent]:
        both = {agent: self._unseen.pop(agent) for agent in agents if agent in self._unseen}
        return {agent: obs for agent, (obs, _) in both.items()}, {agent: info for agent, (_, info) in both.items()}
