"""Every policy's class, spaces and settings, found out where they were left empty.

space of a policy  ◀─ its spec ◀─ spaces[pid] ◀─ agents of the env that map to it ◀─ the env's one space
                                                         ◀─ spaces["__env__"] ◀─ the config
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gymnasium import Space, spaces

ENV_SPACES = "__env__"
Kind: TypeAlias = Literal["observation", "action"]
Spaces: TypeAlias = Mapping[str, tuple[Space[Any] | None, Space[Any] | None]]
ByAgent: TypeAlias = dict[Any, Space[Any] | None]


class ByAgentSpace(spaces.Dict):
    """The spaces of an env's agents as one space: what it observes is a dict by agent."""


def env_space(env: Any, kind: Kind) -> Space[Any] | None:
    """The space that an env has itself; that of a dict by agent, if its agents have one each."""
    own, by_agent = _one_space(env, kind), _agent_spaces(env, kind)
    if not by_agent or None in by_agent.values():
        return own
    found = ByAgentSpace(dict[Any, Any](by_agent))
    return found if own is None or own == found else own


@dataclass(frozen=True)
class SpaceSources:
    """Where the spaces of policies are looked for.

    Attributes:
        env: a sub-env, or None.
        spaces: by policy id, and of the env under `"__env__"`.
        mapping: which policy acts for an agent: `f(agent_id, episode) -> policy id`; asked only where agents of one
            env have different spaces, with None for the episode.
        fallback: the config's own spaces.
    """

    env: Any
    spaces: Spaces
    mapping: Callable[..., str]
    fallback: Mapping[Kind, Space[Any] | None]

    def space(self, policy_id: str, kind: Kind) -> Space[Any]:
        """The space of a policy whose spec has none.

        Raises:
            ValueError: nobody has one, or agents of the policy have different ones.
        """
        for find in (self._given, self._of_env, self._of_env_elsewhere):
            found = find(policy_id, kind)
            if found is not None:
                return found
        if (own := self.fallback[kind]) is not None:
            return own
        raise ValueError(
            f"policy {policy_id!r} has no {kind}_space: neither its PolicySpec, nor spaces[{policy_id!r}], the env, "
            f"spaces[{ENV_SPACES!r}] or config.{kind}_space has one; give one of them"
        )

    def _given(self, key: str, kind: Kind) -> Space[Any] | None:
        observation_space, action_space = self.spaces.get(key) or (None, None)
        return observation_space if kind == "observation" else action_space

    def _of_env(self, policy_id: str, kind: Kind) -> Space[Any] | None:
        by_agent = None if self.env is None else _agent_spaces(self.env, kind)
        if by_agent:
            return self._shared(policy_id, kind, by_agent)
        return None if self.env is None else _one_space(self.env, kind)

    def _of_env_elsewhere(self, policy_id: str, kind: Kind) -> Space[Any] | None:
        space = self._given(ENV_SPACES, kind)
        return self._shared(policy_id, kind, dict[Any, Any](space.spaces)) if isinstance(space, ByAgentSpace) else space

    def _shared(self, policy_id: str, kind: Kind, by_agent: ByAgent) -> Space[Any] | None:
        """The space of the agents that map to the policy; None if none does and agents have several."""
        one = next(iter(by_agent.values()))
        if all(space == one for space in by_agent.values()):
            return one
        first, *others = [agent for agent in by_agent if self.mapping(agent, None) == policy_id] or [None]
        for agent in others:
            if by_agent[agent] != by_agent[first]:
                raise ValueError(
                    f"agents {first!r} and {agent!r} both map to {policy_id!r}, but their {kind} spaces "
                    f"differ: {by_agent[first]} and {by_agent[agent]}; map them to two policies"
                )
        return by_agent.get(first)


def _one_space(env: Any, kind: Kind) -> Space[Any] | None:
    """The space of a single-agent env, or of one sub-env of a vector env."""
    for name in (f"single_{kind}_space", f"{kind}_space"):
        found = getattr(env, name, None)
        if isinstance(found, Space):
            return found
    return None


def _agent_spaces(env: Any, kind: Kind) -> ByAgent | None:
    """Spaces by agent of a multi-agent env, empty where no agents are known yet; None for any other env."""
    env = getattr(env, "unwrapped", env)
    space_of = getattr(env, f"get_{kind}_space", None)
    if not callable(space_of):
        return None
    agents = getattr(env, "possible_agents", None) or getattr(env, "agents", None)
    if not agents:  # in an order that does not depend on hashes
        agents = sorted(getattr(env, "get_agent_ids", list)(), key=str)
    return {agent: space_of(agent) for agent in agents}
