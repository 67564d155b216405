"""Agents that act one after another, each in an env of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from swath.rollout.hosts.multi_agent import ALL, ByAgent, Step
from swath.rollout_workers.multi_agent_env import MultiAgentEnv
from swath.testing.envs.mock import MockEnv, MockEnv2


class _InTurn(MultiAgentEnv):
    """Every step shows the next agent what came of its last action, one round later.

    An agent sees its end with a reward of 0.

    Args:
        envs: one per agent.
        enough: the episode is over when as many agents have seen their ends.
    """

    def __init__(self, envs: Sequence[MockEnv], enough: int) -> None:
        self.envs = list(envs)
        self.agents = list(range(len(self.envs)))
        self.observation_space = gym.spaces.Discrete(10)
        self.action_space = gym.spaces.Discrete(2)
        self._enough = enough
        self._last: dict[Any, tuple[Any, float, bool, bool, dict[str, Any]]] = {}
        self._ended: set[Any] = set()
        self._turn = 0
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin with agent 0."""
        super().reset(seed=seed, options=options)
        for agent, env in enumerate(self.envs):
            obs, info = env.reset()
            self._last[agent] = (obs, 0.0, False, False, info)
        self._ended.clear()
        self._turn = 0
        obs, _, _, _, infos = self._show_the_next()
        return obs, infos

    def step(self, action_dict: ByAgent) -> Step:
        """Let agents act, and show the next its last."""
        if len(self._ended) >= self._enough:
            raise RuntimeError("the episode is over: reset the env before stepping it")
        for agent, action in action_dict.items():
            self._last[agent] = self.envs[agent].step(action)
        return self._show_the_next()

    def _show_the_next(self) -> Step:
        agent, self._turn = self._turn, (self._turn + 1) % len(self.envs)
        obs, reward, terminated, truncated, info = self._last[agent]
        if terminated or truncated:
            reward = 0.0
            self._ended.add(agent)
        over = len(self._ended) >= self._enough
        return (
            {agent: obs},
            {agent: reward},
            {agent: terminated, ALL: over},
            {agent: truncated, ALL: over},
            {agent: info},
        )


class RoundRobinMultiAgent(_InTurn):
    """Agents with episodes of 5 steps each, in turn.

    Args:
        num: how many.
        increment_obs: they observe the step they are at; else 0.
    """

    def __init__(self, num: int, increment_obs: bool = False) -> None:
        super().__init__([MockEnv2(5) if increment_obs else MockEnv(5) for _ in range(num)], num)


class EarlyDoneMultiAgent(_InTurn):
    """Two agents, with episodes of 3 and 5 steps; the first that ends takes the other along."""

    def __init__(self) -> None:
        super().__init__([MockEnv(3), MockEnv(5)], 1)
