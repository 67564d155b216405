"""Envs and policies by the names that a command line has for them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from swath.cli.acting import policy_at
from swath.cli.failure import UsageError, told_in_one_line
from swath.cli.spaces import Spaces
from swath.rollout.hosts.sources import Source, make_env

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_FOUND = object()


@dataclass(frozen=True)
class Actor:
    """Who acts: a policy, or what builds one; neither for random actions.

    Attributes:
        policy: as `Collector` takes it.
        factory: builds it.
        words: what the user calls it.
    """

    policy: Any = None
    factory: Callable[..., Any] | None = None
    words: str = "random actions"


def env_named(name: str) -> Any:
    """An env source: what `module:name` is in that module, or else an id of Gymnasium's.

    Raises:
        UsageError: there is no such module, or no such env.
    """
    if ":" in name:
        found = object_named(name, default=NOT_FOUND)
        if found is not NOT_FOUND:
            return found
    if not name.startswith("ALE/"):  # registered where it is made
        with told_in_one_line():
            gym.spec(name.rpartition(":")[2])  # the module is imported by now
    return name


def actor_named(policy: str | None, factory: str | None, env: Any, env_name: str) -> Actor:
    """Who acts: a checkpoint of `swath train`, or what `module:name` is.

    Raises:
        UsageError: both are given, there is no such thing, or it is for other spaces.
    """
    if policy is not None and factory is not None:
        raise UsageError("--policy and --policy-factory are two ways to say who acts; leave one of them out")
    if factory is not None:
        return Actor(factory=object_named(factory), words=factory)
    if policy is None:
        return Actor()
    if ":" in policy and not Path(policy).exists():
        return Actor(object_named(policy), words=policy)
    with told_in_one_line():
        return Actor(policy_at(Path(policy), env_name, _spaces(env)), words=policy)


def object_named(name: str, default: Any = None) -> Any:
    """What `module:name` is.

    Args:
        name: module and name.
        default: given back where the module has no such name; `None` raises.

    Raises:
        UsageError: there is no such module; no such name in it, without a default.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute, default)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise
        raise UsageError(
            f"{name}: no module named {missing.name}; for a module in this folder put PYTHONPATH=. before the command"
        ) from None
    if found is None or not attribute:
        raise UsageError(f"{name}: {module} has no {attribute or 'name after the colon'}")
    return found


def _spaces(env: Any) -> Spaces:
    if Source(env).is_instance:
        return Spaces(env.observation_space, env.action_space)
    with closing(make_env(Source(env))) as made:
        names = ("single_observation_space", "single_action_space")
        observation, action = (getattr(made, name, getattr(made, name.removeprefix("single_"))) for name in names)
        return Spaces(observation, action)
