"""PettingZoo's envs as multi-agent envs. An env is handed in, so that nothing of PettingZoo is imported here."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

from gymnasium import Space

from swath.rollout.hosts.by_agent import ALL, ByAgent, Step
from swath.rollout_workers.multi_agent_env.base import Endings, MultiAgentEnv


def as_multi_agent(env: Any) -> Any:
    """PettingZoo's envs wrapped, every other env as it is."""
    zoo = sys.modules.get("pettingzoo.utils.env")  # where it was not imported there is none of its envs
    if zoo is None or isinstance(env, MultiAgentEnv):
        return env
    if isinstance(env, zoo.ParallelEnv):
        return ParallelPettingZooEnv(env)
    return PettingZooEnv(env) if isinstance(env, zoo.AECEnv) else env


class _Wrapped(MultiAgentEnv):
    """What both kinds share: spaces from the env by agent, and agents as they are after each call.

    The env is reset here only if it does not say who its agents may be.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = env.metadata
        self.render_mode = getattr(env, "render_mode", None)
        self._endings = Endings()
        if not hasattr(env, "possible_agents"):
            env.reset()
        self.agents = []
        self.possible_agents = list(getattr(env, "possible_agents", None) or env.agents)
        self.observation_spaces = {agent: env.observation_space(agent) for agent in self.possible_agents}
        self.action_spaces = {agent: env.action_space(agent) for agent in self.possible_agents}

    def get_observation_space(self, agent_id: Hashable) -> Space[Any]:
        """The space of an agent's observations, also of one that was not foreseen."""
        space: Space[Any] = self.env.observation_space(agent_id)
        return space

    def get_action_space(self, agent_id: Hashable) -> Space[Any]:
        """The space of an agent's actions, likewise."""
        space: Space[Any] = self.env.action_space(agent_id)
        return space

    def render(self) -> Any:
        """What the env renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        self._endings = Endings()
        returned = self.env.reset(seed=seed, options=options)
        self.agents = list(self.env.agents)
        return returned

    def _finished(self, terminateds: ByAgent, truncateds: ByAgent) -> tuple[ByAgent, ByAgent]:
        """The flags of a step with those of the env; it is over when no agent is left."""
        self.agents = list(self.env.agents)
        self._endings.note(terminateds, truncateds)
        terminated, truncated = self._endings.of_all(over=not self.agents)
        return {**terminateds, ALL: terminated}, {**truncateds, ALL: truncated}


class ParallelPettingZooEnv(_Wrapped):
    """A PettingZoo env whose agents act together.

    Args:
        env: a `ParallelEnv`.

    Attributes:
        env: it.
    """

    @property
    def par_env(self) -> Any:
        """The env, as the peer calls it."""
        return self.env

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin an episode."""
        obs, infos = self._begin(seed, options)
        return dict(obs), _of(obs, infos)

    def step(self, action_dict: ByAgent) -> Step:
        """Let all agents that are there act."""
        obs, rewards, terminateds, truncateds, infos = self.env.step(action_dict)
        return dict(obs), dict(rewards), *self._finished(terminateds, truncateds), _of(obs, infos)


class PettingZooEnv(_Wrapped):
    """A PettingZoo env whose agents act in turn: who is next is observed, with what it was paid since it last acted.

    Args:
        env: an `AECEnv`.

    Attributes:
        env: it.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin an episode."""
        self._begin(seed, options)
        obs, _, _, _, infos = self._until_somebody_is_due()
        return obs, infos

    def step(self, action_dict: ByAgent) -> Step:
        """Let the agent act whose turn it is.

        Raises:
            ValueError: there is no action of that agent.
        """
        due = self.env.agent_selection
        if due not in action_dict:
            raise ValueError(
                f"it is {due!r} whose turn it is, but there are actions of {sorted(map(repr, action_dict))}"
            )
        self.env.step(action_dict[due])
        return self._until_somebody_is_due()

    def _until_somebody_is_due(self) -> Step:
        """What the next agent sees, and before it what those see that have ended, who are let go."""
        step: Step = ({}, {}, {}, {}, {})
        obs, rewards, terminateds, truncateds, infos = step
        while self.env.agents:
            agent = self.env.agent_selection
            obs[agent], rewards[agent], terminateds[agent], truncateds[agent], infos[agent] = self.env.last()
            if not (terminateds[agent] or truncateds[agent]):
                break
            self.env.step(None)
        return obs, rewards, *self._finished(terminateds, truncateds), infos


def _of(obs: ByAgent, infos: ByAgent | None) -> ByAgent:
    """Infos of agents that are observed; PettingZoo allows others."""
    return {agent: info for agent, info in (infos or {}).items() if agent in obs}
