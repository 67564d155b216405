"""A sub-env in a process of its own: what serves it over there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from swath.rollout.hosts.closing import closed_on_failure
from swath.rollout_workers.env_context import EnvContext
from swath.rollout_workers.hosts.torchrl_env import as_gymnasium
from swath.rollout_workers.multi_agent_env import MultiAgentEnv, as_multi_agent


@dataclass(frozen=True)
class Recipe:
    """How a sub-env is made; travels to where it is to live.

    Attributes:
        creator: `f(EnvContext) -> env`.
        validate: `f(env, EnvContext)`, or None.
        context: its own.
    """

    creator: Callable[[EnvContext], Any]
    validate: Callable[[Any, EnvContext], Any] | None
    context: EnvContext

    def __call__(self) -> Servant:
        """The env, served."""
        made: list[Any] = []
        with closed_on_failure(made):
            env = as_multi_agent(self.creator(self.context))
            if env is not None:
                made.append(env)
            if self.validate is not None and env is not None:
                self.validate(env, self.context)
            return Servant(env)


class Servant:
    """Answers for a sub-env.

    Args:
        env: the env, as it was made.
    """

    def __init__(self, env: Any) -> None:
        self._made, self._env = env, as_gymnasium(env)

    def look(self) -> dict[str, Any]:
        """What can be seen of it from outside, by attribute.

        Raises:
            TypeError: it is a vector env, or none at all.
        """
        if not isinstance(self._env, gym.Env):
            raise TypeError(f"remote_worker_envs=True is for envs that are no vector envs, not {self._env!r}")
        names = ("observation_space", "action_space", "metadata", "render_mode", "spec")
        seen = {name: getattr(self._env, name) for name in names}
        return {**seen, **_agents_of(self._env)} if isinstance(self._env, MultiAgentEnv) else seen

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        """Begin an episode."""
        observation, info = self._env.reset(seed=seed, options=options)
        return observation, info

    def step(self, action: Any) -> tuple[Any, ...]:
        """Make a step."""
        returned: tuple[Any, ...] = self._env.step(action)
        return returned

    def render(self) -> Any:
        """A frame."""
        return self._env.render()

    def apply(self, func: Callable[..., Any], *args: Any) -> Any:
        """`func(env, …)`."""
        return func(self._made, *args)

    def close(self) -> None:
        """Close it."""
        self._env.close()


def _agents_of(env: MultiAgentEnv) -> dict[str, Any]:
    """Its agents and their spaces, as far as it knows them before it is reset."""
    known = list(env.possible_agents or env.agents or sorted(env.get_agent_ids(), key=str))
    return {
        "agents": list(env.agents),
        "possible_agents": known,
        "observation_spaces": {agent: env.get_observation_space(agent) for agent in known} or None,
        "action_spaces": {agent: env.get_action_space(agent) for agent in known} or None,
    }
