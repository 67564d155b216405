"""Envs by name, and what makes an env of whatever `config.env` is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import gymnasium as gym

from swath.rollout_workers.config.checks import function, id_

Creator: TypeAlias = Callable[[Any], Any]
EnvName: TypeAlias = str | type | Callable[..., Any]
"""A gymnasium id, a registered name, a class, or a function of the `EnvContext`."""

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
