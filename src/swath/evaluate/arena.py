"""From what is handed in as an env to the slots of an evaluation.

id | callable | instance | list of k of these ──▶ S slots of one host; slot g runs entry g mod k
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from swath.evaluate.request import EvalRequest
from swath.options import count
from swath.rollout.hosts.base import ArrayHost
from swath.rollout.hosts.closing import closed_on_failure
from swath.rollout.hosts.gymnasium import EnvListHost, require_equal_spaces
from swath.rollout.hosts.sources import Source, build
from swath.rollout.hosts.vec_env import VecEnvHost, is_vec_env
from swath.rollout.spaces import action_leaves, observation_leaves

_NAME = "num_envs"


def make_host(env: Any, num_envs: int | None) -> tuple[ArrayHost, bool]:
    """The host of an evaluation, and whether its envs were built here (else they are borrowed).

    Args:
        env: an id, a callable, an instance, or a list of one kind of these: k tasks.
        num_envs: how many slots; `None`: 1 for an id or callable, the size of an instance or list.

    Raises:
        TypeError: something else.
        ValueError: a number of slots that an instance or list cannot have, or envs that differ in their spaces.
    """
    if num_envs is not None:
        count(_NAME, num_envs)
    if isinstance(env, list | tuple):
        return _many_tasks(list(env), num_envs)
    if is_vec_env(env):
        _require_size(env, env.num_envs, num_envs)
        return VecEnvHost(env), False
    source = Source(env)
    if not source.is_instance:
        return build(Source(env, copies=num_envs, copies_name=_NAME)), True
    host = build(source)
    _require_size(env, host.spec.num_envs, num_envs)
    return host, False


def only_together(host: ArrayHost, request: EvalRequest) -> bool:
    """Whether every reset with a seed, or before an env's own end, must be one of all envs."""
    seeded = request.seed is not None and host.spec.seeding == "episode"
    return not host.spec.resettable and (seeded or request.limits.max_steps is not None)


def _many_tasks(entries: list[Any], num_envs: int | None) -> tuple[ArrayHost, bool]:
    if not entries:
        raise ValueError("env is an empty list; it must name at least one env")
    sources = [Source(entry) for entry in entries]
    borrowed = [source.is_instance for source in sources]
    if any(borrowed) != all(borrowed):
        raise ValueError("env is a list of instances and of things to build; make it one kind")
    size = _slots_of(len(entries), num_envs, fixed=borrowed[0])
    owned: list[ArrayHost] = []
    with closed_on_failure(owned):
        envs = [_single(sources[slot % len(entries)], owned) for slot in range(size)]
        for env in envs:
            action_leaves(env.action_space)
            observation_leaves(env.observation_space)
        _require_different(envs)
        require_equal_spaces(envs)
        return EnvListHost(envs), not borrowed[0]


def _require_different(envs: list[gym.Env[Any, Any]]) -> None:
    if len({id(env) for env in envs}) < len(envs):
        raise ValueError("env is a list that gives the same env twice; every slot needs one of its own")


def _slots_of(n_entries: int, num_envs: int | None, *, fixed: bool) -> int:
    size = n_entries if num_envs is None else num_envs
    if size % n_entries or (fixed and size != n_entries):
        wanted = f"{n_entries}" if fixed else f"a multiple of {n_entries}"
        raise ValueError(f"num_envs={num_envs} for a list of {n_entries} envs; it must be {wanted}, or None")
    return size


def _single(source: Source, owned: list[ArrayHost]) -> gym.Env[Any, Any]:
    host = build(source)
    if not source.is_instance:
        owned.append(host)
    if not isinstance(host.env, gym.Env):
        raise TypeError(f"{source.env!r} in a list of envs gives {host.env}; a list takes single envs")
    return host.env


def _require_size(env: Any, size: int, num_envs: int | None) -> None:
    if num_envs not in (None, size):
        raise ValueError(
            f"num_envs={num_envs} for {env}, which is {size} env{'s' * (size > 1)} already; leave it out, or pass an "
            "id or a callable that builds one"
        )
