"""Envs with several agents: the base class, and adapters of copies of an env and of PettingZoo's envs.

PettingZoo's envs are handed in, so that nothing of PettingZoo is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
from gymnasium import Space, spaces

from swath.options import count
from swath.rollout.hosts.gymnasium import ALL, ByAgent, Step, read_step_limit, strip_wrappers
from swath.rollout.hosts.pettingzoo import is_parallel_env
from swath.rollout_workers.env_runner import creator_of
from swath.seeds import derive


class MultiAgentEnv(gym.Env[Any, Any]):
    """Base of envs whose observations, actions, rewards and flags are dicts by agent id (anything hashable).

    Agents that are observed act next. A reward of an agent that is not observed is kept for its next observation. Both
    dicts of flags have `"__all__"`, which ends the episode of every agent.

    A subclass need not call this `__init__`, and need not set more than it has: agents, or ids that `get_agent_ids`
    returns; spaces by agent, a `Dict` space of them, or one space for all.

    Attributes:
        agents: the present ones.
        possible_agents: all that may ever be present.
        observation_spaces: by agent; None: see `observation_space`.
        action_spaces: by agent; None: see `action_space`.
        observation_space: of every agent, or a `Dict` by agent.
        action_space: of every agent, or a `Dict` by agent.
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
            seed: seeds `np_random`; None leaves it unchanged.
            options: of the env.

        Returns:
            Observations and infos of the agents that act next. Here: of none; a subclass calls this to be seeded.
        """
        super().reset(seed=seed, options=options)
        return {}, {}

    def step(self, action_dict: ByAgent) -> Step:
        """Advance by one step of the env.

        Args:
            action_dict: actions of the agents that were observed; empty if no agent was.

        Returns:
            Observations of the agents that act next, rewards, terminated and truncated flags (with `"__all__"`), and
            infos of agents that are observed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def get_observation_space(self, agent_id: Hashable) -> Space[Any]:
        """Return the space of an agent's observations."""
        return _space_of_agent(agent_id, self.observation_spaces, self.observation_space)

    def get_action_space(self, agent_id: Hashable) -> Space[Any]:
        """Return the space of an agent's actions."""
        return _space_of_agent(agent_id, self.action_spaces, self.action_space)

    @property
    def num_agents(self) -> int:
        """Return how many agents are present."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """Return how many agents there may ever be."""
        return len(self.possible_agents)

    def get_agent_ids(self) -> set[Hashable]:
        """Return the ids of the agents."""
        return set(getattr(self, "_agent_ids", ()) or self.agents)


def _space_of_agent(agent_id: Hashable, by_agent: Mapping[Any, Space[Any]] | None, common: Any) -> Space[Any]:
    if by_agent is None and isinstance(common, spaces.Dict):
        by_agent = common.spaces if agent_id in common.spaces else None
    space: Space[Any] = common if by_agent is None else by_agent[agent_id]
    return space


def make_multi_agent(env_name_or_creator: str | Callable[[Any], Any]) -> type[MultiAgentEnv]:
    """Return a class of envs whose agents 0 … n-1 each act in their own copy of the env.

    Args:
        env_name_or_creator: a gymnasium id, a name from `register_env`, or `f(config) -> env`.

    Returns:
        A class that is made with a config: `{"num_agents": n}` (1 if left out), the rest is for each copy.
    """

    class Copies(IndependentCopies):
        """Copies of that env."""

        creator = staticmethod(creator_of(env_name_or_creator))

    return Copies


class CompositeEnv(MultiAgentEnv):
    """An env built of other envs, which is over when no agent is left: terminated if every one did, else truncated."""

    _terminated: dict[Hashable, bool]  # terminated flags of agents that have ended since the reset

    def _flags(self, terminateds: ByAgent, truncateds: ByAgent) -> tuple[ByAgent, ByAgent]:
        """Return the flags of a step, with the flags of the whole env."""
        for flags, is_terminated in ((truncateds, False), (terminateds, True)):
            if any(flags.values()):
                self._terminated |= {agent: is_terminated for agent, flag in flags.items() if flag}
        is_over = all(agent in self._terminated for agent in self.agents)
        terminated = is_over and all(self._terminated.values())
        return {**terminateds, ALL: terminated}, {**truncateds, ALL: is_over and not terminated}


class IndependentCopies(CompositeEnv):
    """Independent copies of an env, one per agent.

    Args:
        config: `num_agents`, and the rest for each copy.

    Attributes:
        creator: makes a copy of a config.
        envs: the copies.
    """

    creator: Callable[[Any], Any]

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        env_config: Any = {} if config is None else deepcopy(config)
        number = count("num_agents", env_config.pop("num_agents", 1))
        self.envs = [self.creator(deepcopy(env_config)) for _ in range(number)]
        cores = [strip_wrappers(env) for env in self.envs]  # wrappers cost as much as a small env
        self._steps, self._limiters = [core.step for core, _ in cores], [limiters for _, limiters in cores]
        self.agents = list(range(number))
        self.observation_spaces = {agent: env.observation_space for agent, env in enumerate(self.envs)}
        self.action_spaces = {agent: env.action_space for agent, env in enumerate(self.envs)}
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Reset all copies; with a seed each gets a different one, the first the seed itself."""
        super().reset(seed=seed)
        self._terminated = {}
        seeds = [derive(seed, "env", agent) if seed is not None and agent else seed for agent in range(len(self.envs))]
        returned = [env.reset(seed=env_seed, options=options) for env, env_seed in zip(self.envs, seeds, strict=True)]
        limits = map(read_step_limit, self._limiters)  # they may have been changed
        self._steps_left = [float("inf") if limit is None else limit for limit in limits]
        return dict(enumerate(obs for obs, _ in returned)), dict(enumerate(info for _, info in returned))

    def step(self, action_dict: ByAgent) -> Step:
        """Step the copies of the agents that act."""
        step: Step = ({}, {}, {}, {}, {})
        obs, rewards, terminateds, truncateds, infos = step
        for agent, action in action_dict.items():
            obs[agent], rewards[agent], terminateds[agent], truncated, infos[agent] = self._steps[agent](action)
            self._steps_left[agent] -= 1
            truncateds[agent] = truncated or self._steps_left[agent] <= 0
        return obs, rewards, *self._flags(terminateds, truncateds), infos

    def close(self) -> None:
        """Close all copies."""
        for env in self.envs:
            env.close()


def as_multi_agent(env: Any) -> Any:
    """Wrap an env of PettingZoo; return any other env unchanged."""
    if isinstance(env, MultiAgentEnv):
        return env
    if is_parallel_env(env):
        return ParallelPettingZooEnv(env)
    return PettingZooEnv(env) if is_parallel_env(env, "AECEnv") else env


class PettingZooWrapper(CompositeEnv):
    """A PettingZoo env of either kind: spaces from the env by agent, and the present agents after each call."""

    def __init__(self, env: Any) -> None:
        self.env, self.metadata, self.render_mode = env, env.metadata, getattr(env, "render_mode", None)
        self.agents, self.possible_agents = [], list(env.possible_agents)
        self.observation_spaces = {agent: env.observation_space(agent) for agent in self.possible_agents}
        self.action_spaces = {agent: env.action_space(agent) for agent in self.possible_agents}

    def render(self) -> Any:
        """Return the env's frame."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        self._terminated = {}
        returned = self.env.reset(seed=seed, options=options)
        self.agents = list(self.env.agents)
        return returned

    def _step(self, obs: ByAgent, rewards: ByAgent, terminateds: ByAgent, truncateds: ByAgent, infos: ByAgent) -> Step:
        """Return a step with the env's flags, without the infos of agents that are not observed."""
        self.agents = list(self.env.agents)
        observed_infos = {agent: info for agent, info in infos.items() if agent in obs}
        return dict(obs), dict(rewards), *self._flags(terminateds, truncateds), observed_infos


class ParallelPettingZooEnv(PettingZooWrapper):
    """A PettingZoo env whose agents act together.

    Args:
        env: a `ParallelEnv`.

    Attributes:
        env: it.
    """

    @property
    def par_env(self) -> Any:
        """Return the env, under RLlib's name."""
        return self.env

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin an episode."""
        obs, infos = self._begin(seed, options)
        return dict(obs), {agent: info for agent, info in infos.items() if agent in obs}

    def step(self, action_dict: ByAgent) -> Step:
        """Step all present agents."""
        return self._step(*self.env.step(action_dict))


class PettingZooEnv(PettingZooWrapper):
    """A PettingZoo env whose agents act in turn: the next one is observed, with the reward since it last acted.

    Args:
        env: an `AECEnv`.

    Attributes:
        env: it.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin an episode."""
        self._begin(seed, options)
        obs, _, _, _, infos = self._advance_to_next_agent()
        return obs, infos

    def step(self, action_dict: ByAgent) -> Step:
        """Step the agent that is next.

        Raises:
            ValueError: there is no action of that agent.
        """
        agent = self.env.agent_selection
        if agent not in action_dict:
            raise ValueError(f"agent {agent!r} is next, but there are actions of {[*action_dict]}; give its action")
        self.env.step(action_dict[agent])
        return self._advance_to_next_agent()

    def _advance_to_next_agent(self) -> Step:
        """Return the next agent's observation, and the last ones of agents that ended earlier and are removed."""
        last, is_next = dict[Any, tuple[Any, ...]](), False
        while self.env.agents and not is_next:
            agent = self.env.agent_selection
            _, _, terminated, truncated, _ = last[agent] = self.env.last()
            is_next = not (terminated or truncated)
            if not is_next:
                self.env.step(None)
        return self._step(*({agent: row[i] for agent, row in last.items()} for i in range(5)))
