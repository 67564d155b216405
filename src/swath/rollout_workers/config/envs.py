"""Envs by name, what makes an env of whatever `config.env` is, and the spaces of policies whose specs have none.

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
    """The space that an env has itself; that of a dict by agent, if its agents have one each."""
    own, by_agent = _one_space(env, kind), _agent_spaces(env, kind)
    if not by_agent or None in by_agent.values():
        return own
    found = spaces.Dict(dict[Any, Any](by_agent))
    return found if own is None or own == found else own


def policy_space(
    policy_id: str,
    spec: Any,
    kind: Kind,
    env: Any,
    given: Spaces,
    mapping: Callable[..., str],
    fallback: Space[Any] | None,
) -> Space[Any]:
    """The space of a policy, found in the first place that has one.

    Args:
        policy_id: the policy.
        spec: its `PolicySpec`.
        kind: which space.
        env: a sub-env, or None.
        given: by policy id, and of the env under `"__env__"`.
        mapping: which policy acts for an agent: `f(agent_id, episode) -> policy id`; called only where agents of one
            env have different spaces, with None for the episode.
        fallback: the config's own space.

    Raises:
        ValueError: there is none, or agents of the policy have different ones.
    """

    def found() -> Iterator[Space[Any] | None]:
        yield getattr(spec, f"{kind}_space")
        yield _of_pair(given, policy_id, kind)
        by_agent = _agent_spaces(env, kind)
        yield _shared(policy_id, kind, by_agent, mapping) if by_agent else _one_space(env, kind)
        yield _of_pair(given, "__env__", kind)
        yield fallback

    space = next((space for space in found() if space is not None), None)
    if space is None:
        places = f"its PolicySpec, nor spaces[{policy_id!r}], the env, spaces['__env__'] or config.{kind}_space"
        raise ValueError(f"policy {policy_id!r} has no {kind}_space: neither {places} has one; give env_creator or one")
    return space


def _of_pair(given: Spaces, key: str, kind: Kind) -> Space[Any] | None:
    return (given.get(key) or (None, None))[kind == "action"]


def _shared(
    policy_id: str, kind: Kind, by_agent: Mapping[Any, Space[Any] | None], mapping: Callable[..., str]
) -> Space[Any] | None:
    """The space of the agents that map to the policy; None if none does and agents have several."""
    one = next(iter(by_agent.values()))
    if all(space == one for space in by_agent.values()):
        return one
    first, *others = [agent for agent in by_agent if mapping(agent, None) == policy_id] or [None]
    for agent in others:
        if by_agent[agent] != by_agent[first]:
            differ = f"but their {kind} spaces differ: {by_agent[first]} and {by_agent[agent]}"
            raise ValueError(f"agents {first!r} and {agent!r} both map to {policy_id!r}, {differ}; map them to two")
    return by_agent.get(first)


def _one_space(env: Any, kind: Kind) -> Space[Any] | None:
    """The space of a single-agent env, or of one sub-env of a vector env; None without env."""
    named = (getattr(env, name, None) for name in (f"single_{kind}_space", f"{kind}_space"))
    return next((space for space in named if isinstance(space, Space)), None)


def _agent_spaces(env: Any, kind: Kind) -> dict[Any, Space[Any] | None]:
    """Spaces by agent of a multi-agent env; empty where no agents are known yet, and for any other env."""
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
    """Give a name to `creator(EnvContext) -> env`; a name given before means the new one from now on.

    The name is looked up in the process that builds workers, and the creator travels to them.

    Raises:
        ValueError: the name is no string, or the creator cannot be called.
    """
    _creators[id_("name", name)] = function("creator", creator)


def creator_of(env: EnvName) -> Creator:
    """What makes an env of an `EnvContext`: the class or function, what is registered, or gymnasium by id."""
    if not isinstance(env, str):
        return env
    return _creators.get(env) or partial(_make_by_id, env)


def _make_by_id(env_id: str, context: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """A gymnasium env, with the context's content as keywords."""
    return gym.make(env_id, **context)
