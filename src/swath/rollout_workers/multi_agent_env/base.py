"""Envs in which several agents act."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium import Space, spaces

from swath.rollout.hosts.by_agent import ALL, ByAgent, Step


class Endings:
    """Agents that have ended since the reset: True for those that terminated."""

    def __init__(self) -> None:
        self._terminated: dict[Hashable, bool] = {}

    @property
    def number(self) -> int:
        """How many have ended."""
        return len(self._terminated)

    def note(self, terminateds: Mapping[Hashable, bool], truncateds: Mapping[Hashable, bool]) -> None:
        """Read the flags of a step."""
        for flags, means in ((truncateds, False), (terminateds, True)):
            if any(flags.values()):
                self._terminated |= {agent: means for agent, flag in flags.items() if flag and agent != ALL}

    def of_all(self, *, over: bool) -> tuple[bool, bool]:
        """The flags of the episode, if it is over: terminated if every agent did, else truncated."""
        terminated = over and all(self._terminated.values())
        return terminated, over and not terminated


class MultiAgentEnv(gym.Env[Any, Any]):
    """Base of envs whose observations, actions, rewards and flags are dicts by agent id (anything hashable).

    Agents that are observed act next. A reward of an agent that is not observed is kept for its next observation. Both
    dicts of flags have `"__all__"`, which ends the episode of every agent.

    A subclass need not call this `__init__`, and need not set more than it has: agents, or ids that `get_agent_ids`
    returns; spaces by agent, a `Dict` space of them, or one space for all.

    Attributes:
        agents: who is there now.
        possible_agents: who may ever be there.
        observation_spaces: by agent; None: `observation_space` says it.
        action_spaces: likewise.
        observation_space: of every agent, or a `Dict` by agent.
        action_space: likewise.
    """

    agents: Sequence[Hashable] = ()
    possible_agents: Sequence[Hashable] = ()
    observation_spaces: Mapping[Any, Space[Any]] | None = None
    action_spaces: Mapping[Any, Space[Any]] | None = None
    observation_space: Any = None
    action_space: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.agents = list(self.agents or sorted(self.get_agent_ids(), key=str))
        self.possible_agents = list(self.possible_agents or self.agents)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin an episode.

        Args:
            seed: seeds `np_random`; None leaves it as it is.
            options: of the env.

        Returns:
            Observations and infos of the agents that act next. Here: of none; a subclass calls this to be seeded.
        """
        super().reset(seed=seed, options=options)
        return {}, {}

    def step(self, action_dict: ByAgent) -> Step:
        """Advance by one step of the env.

        Args:
            action_dict: actions of the agents that were observed; empty if there were none.

        Returns:
            Observations of the agents that act next, rewards, terminated and truncated flags (with `"__all__"`), and
            infos of agents that are observed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def get_observation_space(self, agent_id: Hashable) -> Space[Any]:
        """The space of an agent's observations."""
        return _of_agent(agent_id, self.observation_spaces, self.observation_space)

    def get_action_space(self, agent_id: Hashable) -> Space[Any]:
        """The space of an agent's actions."""
        return _of_agent(agent_id, self.action_spaces, self.action_space)

    @property
    def num_agents(self) -> int:
        """How many agents are there now."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """How many agents there may ever be."""
        return len(self.possible_agents)

    def get_agent_ids(self) -> set[Hashable]:
        """The ids of agents."""
        return set(getattr(self, "_agent_ids", ()) or self.agents)


def _of_agent(agent_id: Hashable, by_agent: Mapping[Any, Space[Any]] | None, common: Any) -> Space[Any]:
    if by_agent is None and isinstance(common, spaces.Dict):
        by_agent = common.spaces if agent_id in common.spaces else None
    found: Space[Any] = common if by_agent is None else by_agent[agent_id]
    return found
