"""The spaces that an env has: one, or one per agent. Envs are looked at, not classified by their class."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import Space, spaces

from swath.rollout.hosts.torchrl import is_torchrl_env
from swath.rollout.hosts.torchrl_spaces import Entries


def one_space(env: Any, kind: str) -> Space[Any] | None:
    """The space of a single-agent env, or of one sub-env of a vector env."""
    if is_torchrl_env(env):
        return Entries(env, "observation" if kind == "observation" else "action").space
    for name in (f"single_{kind}_space", f"{kind}_space"):
        found = getattr(env, name, None)
        if isinstance(found, Space):
            return found
    return None


class ByAgentSpace(spaces.Dict):
    """The spaces of an env's agents as one space: what it observes is a dict by agent."""


def env_space(env: Any, kind: str) -> Space[Any] | None:
    """The space that an env has itself; that of a dict by agent, if its agents have one each."""
    own, agents = one_space(env, kind), AgentSpaces.of(env, kind)
    by_agent: dict[Any, Any] = {} if agents is None else {**agents.by_agent}
    if not by_agent or None in by_agent.values():
        return own
    found = ByAgentSpace(by_agent)
    return found if own is None or own == found else own


def _told(env: Any) -> list[Hashable]:
    """Agents of an env that has only the method that tells them, in an order that does not depend on hashes."""
    ids = getattr(env, "get_agent_ids", list)
    return sorted(ids(), key=str)


@dataclass(frozen=True)
class AgentSpaces:
    """The spaces of a multi-agent env.

    Attributes:
        kind: `"observation"` or `"action"`.
        by_agent: a space, or None, by agent.
        common: the space of agents that are not known before they appear.
    """

    kind: str
    by_agent: Mapping[Hashable, Space[Any] | None]
    common: Space[Any] | None

    @classmethod
    def of(cls, env: Any, kind: str) -> AgentSpaces | None:
        """Of an env that tells the spaces of agents; None for any other."""
        env = env if is_torchrl_env(env) else getattr(env, "unwrapped", env)
        space_of = None if is_torchrl_env(env) else getattr(env, f"get_{kind}_space", None)
        if not callable(space_of):
            return None
        agents = getattr(env, "possible_agents", None) or getattr(env, "agents", None) or _told(env)
        return cls(kind, {agent: space_of(agent) for agent in agents}, None if agents else one_space(env, kind))

    def of_policy(self, policy_id: str, mapping: Callable[[Any], str]) -> Space[Any] | None:
        """The space of the agents that map to the policy; None if none does and agents have several.

        The mapping is asked only where it matters: some need an episode, and there is none yet.

        Raises:
            ValueError: two agents of the policy have different spaces.
        """
        agents = list(self.by_agent)
        if not agents:
            return self.common
        if all(self.by_agent[agent] == self.by_agent[agents[0]] for agent in agents):
            return self.by_agent[agents[0]]
        return self._shared(policy_id, [agent for agent in agents if mapping(agent) == policy_id])

    def _shared(self, policy_id: str, agents: list[Hashable]) -> Space[Any] | None:
        first = self.by_agent[agents[0]] if agents else None
        for agent in agents[1:]:
            if self.by_agent[agent] != first:
                raise ValueError(
                    f"agents {agents[0]!r} and {agent!r} both map to {policy_id!r}, but their {self.kind} spaces "
                    f"differ: {first} and {self.by_agent[agent]}; map them to two policies"
                )
        return first
