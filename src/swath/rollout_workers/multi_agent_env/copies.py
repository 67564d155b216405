"""Independent copies of a single-agent env, as the agents of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from swath.options import count
from swath.rollout.hosts.by_agent import ALL, ByAgent, Step
from swath.rollout_workers.config.registry import creator_of
from swath.rollout_workers.multi_agent_env.base import Endings, MultiAgentEnv
from swath.seeds import derive


def make_multi_agent(env_name_or_creator: str | Callable[[Any], Any]) -> type[MultiAgentEnv]:
    """A class of envs whose agents 0 … n-1 each act in a copy of the env of their own.

    Args:
        env_name_or_creator: a gymnasium id, a name from `register_env`, or `f(config) -> env`.

    Returns:
        A class that is made with a config: `{"num_agents": n}` (1 if left out), the rest is for each copy.
    """
    creator = creator_of(env_name_or_creator)

    class Copies(IndependentCopies):
        """Copies of that env."""

        def __init__(self, config: Mapping[str, Any] | None = None) -> None:
            super().__init__(creator, config)

    return Copies


class IndependentCopies(MultiAgentEnv):
    """Copies of an env that have nothing to do with each other.

    Args:
        creator: makes a copy of a config.
        config: `num_agents`, and the rest for each copy.

    Attributes:
        envs: the copies.
    """

    def __init__(self, creator: Callable[[Any], Any], config: Mapping[str, Any] | None = None) -> None:
        rest: Any = {} if config is None else deepcopy(config)
        number = count("num_agents", rest.pop("num_agents", 1))
        self.envs = [creator(deepcopy(rest)) for _ in range(number)]
        self.agents = list(range(number))
        self.observation_spaces = {agent: env.observation_space for agent, env in enumerate(self.envs)}
        self.action_spaces = {agent: env.action_space for agent, env in enumerate(self.envs)}
        self._endings = Endings()
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        """Reset all copies; with a seed each has its own, the first the one that is given."""
        super().reset(seed=seed)
        self._endings = Endings()
        both = [env.reset(seed=_own(seed, agent), options=options) for agent, env in enumerate(self.envs)]
        return {agent: obs for agent, (obs, _) in enumerate(both)}, {
            agent: info for agent, (_, info) in enumerate(both)
        }

    def step(self, action_dict: ByAgent) -> Step:
        """Step the copies of the agents that act."""
        step: Step = {}, {}, {}, {}, {}
        obs, rewards, terminateds, truncateds, infos = step
        for agent, action in action_dict.items():
            obs[agent], rewards[agent], terminateds[agent], truncateds[agent], infos[agent] = self.envs[agent].step(
                action
            )
        self._endings.note(terminateds, truncateds)
        terminateds[ALL], truncateds[ALL] = self._endings.of_all(over=self._endings.number == len(self.envs))
        return step

    def render(self) -> Any:
        """The pictures of all copies beside or below each other; None if they are not rendered to pictures."""
        pictures = [env.render() for env in self.envs]
        if not all(isinstance(picture, np.ndarray) for picture in pictures):
            return None
        height, width = pictures[0].shape[:2]
        return np.concatenate(pictures, axis=0 if width > height else 1)

    def close(self) -> None:
        """Close all copies."""
        for env in self.envs:
            env.close()


def _own(seed: int | None, agent: int) -> int | None:
    """An agent's seed: the first has the one that is given, the others seeds that are unlike it and each other."""
    return derive(seed, "env", agent) if seed is not None and agent else seed
