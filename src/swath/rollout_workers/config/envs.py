"""Envs by name, creators of envs for any `config.env`, and the spaces of policies whose specs have none.

space of a policy  ◀─ its spec ◀─ spaces[pid] ◀─ agents of the env that map to it ◀─ the env's one space
                                                         ◀─ spaces["__env__"] ◀─ the config
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import gymnasium as gym
from gymnasium import Space, spaces

from swath.rollout_workers.config.checks import function, id_

Creator: TypeAlias = Callable[[Any], Any]
EnvName: TypeAlias = str | type | Callable[..., Any]
"""A gymnasium id, a registered name, a class, or a function of the `EnvContext`."""

Kind: TypeAlias = Literal["observation", "action"]
Spaces: TypeAlias = Mapping[str, tuple[Space[Any] | None, Space[Any] | None]]


def env_space(env: Any, kind: Kind) -> Space[Any] | None:
    """Return the space of the env itself, or the dict of its agents' spaces, if each agent has one."""
    env_space_, by_agent = _one_space(env, kind), _agent_spaces(env, kind)
    if not by_agent or None in by_agent.values():
        return env_space_
    agent_spaces = spaces.Dict(dict[Any, Any](by_agent))
    return agent_spaces if env_space_ is None else env_space_


def policy_space(
    policy_id: str,
    spec: Any,
    kind: Kind,
    env: Any,
    spaces_by_id: Spaces,
    mapping: Callable[..., str],
    fallback: Space[Any] | None,
) -> Space[Any]:
    """Return the space of a policy from the first place that has one.

    Args:
        policy_id: the policy.
        spec: its `PolicySpec`.
        kind: which space.
        env: a sub-env, or None.
        spaces_by_id: by policy id, and of the env under `"__env__"`.
        mapping: which policy acts for an agent: `f(agent_id, episode) -> policy id`; called only if agents of one env
            have different spaces, with None for the episode.
        fallback: the config's own space.

    Raises:
        ValueError: there is none, or agents of the policy have different ones.
    """

    def candidates() -> Iterator[Space[Any] | None]:
        yield getattr(spec, f"{kind}_space")
        yield _select_space(spaces_by_id, policy_id, kind)
        by_agent = _agent_spaces(env, kind)
        yield _shared_space(policy_id, kind, by_agent, mapping) if by_agent else _one_space(env, kind)
        yield _select_space(spaces_by_id, "__env__", kind)
        yield fallback

    space = next((space for space in candidates() if space is not None), None)
    if space is None:
        places = f"its PolicySpec, nor spaces[{policy_id!r}], the env, spaces['__env__'] or config.{kind}_space"
        raise ValueError(f"policy {policy_id!r} has no {kind}_space: neither {places} has one; give env_creator or one")
    return space


def _select_space(spaces_by_id: Spaces, key: str, kind: Kind) -> Space[Any] | None:
    return (spaces_by_id.get(key) or (None, None))[kind == "action"]


def _shared_space(
    policy_id: str, kind: Kind, by_agent: Mapping[Any, Space[Any] | None], mapping: Callable[..., str]
) -> Space[Any] | None:
    """Return the space of the agents that map to the policy; None if none does and agents have several."""
    first_space = next(iter(by_agent.values()))
    if all(space == first_space for space in by_agent.values()):
        return first_space
    first, *others = [agent for agent in by_agent if mapping(agent, None) == policy_id] or [None]
    for agent in others:
        if by_agent[agent] != by_agent[first]:
            differ = f"but their {kind} spaces differ: {by_agent[first]} and {by_agent[agent]}"
            raise ValueError(f"agents {first!r} and {agent!r} both map to {policy_id!r}, {differ}; map them to two")
    return by_agent.get(first)


def _one_space(env: Any, kind: Kind) -> Space[Any] | None:
    """Return the space of a single-agent env, or of one sub-env of a vector env; None without env."""
    named = (getattr(env, name, None) for name in (f"single_{kind}_space", f"{kind}_space"))
    return next((space for space in named if isinstance(space, Space)), None)


def _agent_spaces(env: Any, kind: Kind) -> dict[Any, Space[Any] | None]:
    """Return spaces by agent of a multi-agent env; empty if no agents are known yet, and for any other env."""
    env = getattr(env, "unwrapped", env)
    space_of = getattr(env, f"get_{kind}_space", None)
    if not callable(space_of):
        return {}
    agents = getattr(env, "possible_agents", None) or getattr(env, "agents", None)
    if not agents:  # in an order that does not depend on hashes
        agents = sorted(getattr(env, "get_agent_ids", list)(), key=str)
    return {agent: space_of(agent) for agent in agents}


_creators: dict[str, Creator] = {}


def register_env(name: str, creator: Creator) -> None:
    """Register `creator(EnvContext) -> env` under a name, in the place of an earlier one.

    The name is looked up in the process that builds workers, and the creator travels to them.

    Raises:
        ValueError: the name is no string, or the creator cannot be called.
    """
    _creators[id_("name", name)] = function("creator", creator)


def creator_of(env: EnvName) -> Creator:
    """Return the function that makes an env of an `EnvContext`, by name or gymnasium id unless it is one."""
    if not isinstance(env, str):
        return env
    return _creators.get(env) or partial(_make_by_id, env)


def _make_by_id(env_id: str, context: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Make a gymnasium env, with the context's content as keywords."""
    return gym.make(env_id, **context)
