"""From what is handed in as an env to the slots of an evaluation.

id | callable | instance | list of k of these ──▶ S slots of one host; slot g runs entry g mod k
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import torch

from swath.evaluation.request import EvalRequest
from swath.options import count
from swath.rollout.hosts.base import Host, closed_on_failure, first_of
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.pettingzoo import is_parallel_env
from swath.rollout.hosts.sources import Source, build, is_env_instance
from swath.rollout.hosts.tensordict import SideBySide, TensorDictHost
from swath.rollout.hosts.torchrl import Fitting, is_torchrl_env
from swath.rollout.hosts.vec_env import VecEnvHost, is_vec_env

_NAME = "num_envs"


@dataclass(frozen=True)
class SettingRequest:
    """What a worker of an evaluation builds.

    Attributes:
        env: an id, a callable, an instance, or a list of one kind of these: k tasks.
        num_envs: slots of the worker; `None`: 1 for an id or callable, the size of an instance or list.
        policy: the policy; `None` if a factory builds it.
        factory: builds the policy; called with the env if it wants one.
        device: where the policy runs; `None` leaves it where it is.
        seed: root of the seed under which a factory is called; `None` seeds nothing.
        alone: whether the process is the worker's own; if not, others draw from the process's generators meanwhile,
            and evaluations draw from them, too.
        env_kwargs: keywords for an id or a callable.
        rendered: ids are built so that they render frames, unless the keywords say otherwise.
        env_device: where envs run, if that can be chosen.
        compile: whether and how torch compiles the policy; `True`, or a mapping of options.
        cudagraph: whether and how it is captured in a CUDA graph.
        borrows: whether instances go back to whoever has handed them in: envs are not closed, and an object with
            `predict` acts itself, with its modes put back at the end; draws are the caller's business then.
    """

    env: Any
    num_envs: int | None = None
    policy: Any = None
    factory: Callable[..., Any] | None = None
    device: torch.device | None = None
    seed: int | None = 0
    alone: bool = True
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    rendered: bool = False
    env_device: torch.device | None = None
    compile: bool | Mapping[str, Any] | None = None
    cudagraph: bool | Mapping[str, Any] | None = None
    borrows: bool = False

    @property
    def entries(self) -> list[Any]:
        """The tasks."""
        return [*self.env] if isinstance(self.env, list | tuple) else [self.env]

    def source(self, env: Any, copies: int | None = None) -> Source:
        """An env source, with its keywords."""
        rendered = {"render_mode": "rgb_array"} if self.rendered and isinstance(env, str) else {}
        return Source(env, {**rendered, **self.env_kwargs}, copies, _NAME)

    def build(self, env: Any, copies: int | None = None) -> Host:
        """The host of an env source, or of several copies of it."""
        return build(self.source(env, copies), Fitting(device=self.env_device, apart=True))


def make_host(request: SettingRequest) -> tuple[Host, bool]:
    """The host of an evaluation, and whether its envs were built here (else they are borrowed).

    Raises:
        TypeError: something else.
        ValueError: a number of slots that an instance or list cannot have, envs that differ in their spaces, or that
            cannot go to the device.
    """
    require_form(request)
    env, device = request.env, request.env_device
    if isinstance(env, list | tuple):
        host, mine = _many_tasks(request)
    elif is_vec_env(env):
        host, mine = VecEnvHost(env), False
    else:
        mine = not is_env_instance(env)
        host = request.build(env, request.num_envs if mine else None)
    with closed_on_failure([host] if mine else []):
        there = host.spec.device
        if device is not None and there is not None and device.type != there.type:
            raise ValueError(f"env_device={str(device)!r}: these envs run on the CPU; leave it out or give 'cpu'")
    return host, mine


def require_form(request: SettingRequest) -> None:
    """Check what can be checked before anything is built.

    Raises:
        TypeError: no form of an env.
        ValueError: a number of slots that an instance or list cannot have, or keywords for an instance.
    """
    env, num_envs = request.env, request.num_envs
    if num_envs is not None:
        count(_NAME, num_envs)
    if isinstance(env, list | tuple):
        sources = [request.source(entry) for entry in env]
        _slots_of(len(sources), num_envs, fixed=_are_instances(sources))
    elif is_vec_env(env) or (not isinstance(env, str) and request.source(env).is_instance):
        size = _size_of(env)
        if num_envs not in (None, size):
            has = f"{env}, which has {size} already"
            raise ValueError(f"num_envs={num_envs} for {has}; leave it out, or pass a callable")


def only_together(host: Host, request: EvalRequest) -> bool:
    """Whether every reset with a seed, or before an env's own end, must be one of all envs."""
    seeded = request.seed is not None and host.spec.seeding == "episode"
    return not host.spec.resettable and (seeded or request.max_steps is not None)


def _many_tasks(request: SettingRequest) -> tuple[Host, bool]:
    entries = request.entries
    sources = [request.source(entry) for entry in entries]
    borrowed = _are_instances(sources)
    size = _slots_of(len(entries), request.num_envs, fixed=borrowed)
    owned: list[Host] = []
    with closed_on_failure(owned):
        hosts = [_single(request, sources[slot % len(entries)], owned) for slot in range(size)]
        envs = [first_of(host.env) for host in hosts]
        _require_different(envs)
        return _side_by_side(hosts, envs), not borrowed


def _side_by_side(hosts: list[Host], envs: list[Any]) -> Host:
    """One host for envs of one kind."""
    kinds = {type(host) for host in hosts}
    if len(kinds) > 1:
        raise TypeError(f"env is a list of several kinds: {sorted(kind.__name__ for kind in kinds)}; make it one kind")
    of_tensordicts = [host for host in hosts if isinstance(host, TensorDictHost)]
    return SideBySide(of_tensordicts) if of_tensordicts else EnvListHost(envs)


def _are_instances(sources: list[Source]) -> bool:
    if not sources:
        raise ValueError("env is an empty list; it must name at least one env")
    borrowed = [source.is_instance for source in sources]
    if any(borrowed) != all(borrowed):
        raise ValueError("env is a list of instances and of things to build; make it one kind")
    return borrowed[0]


def _size_of(env: Any) -> int:
    """How many envs an instance steps together."""
    if is_torchrl_env(env):
        return int(env.batch_size.numel())
    return 1 if isinstance(env, gym.Env) or is_parallel_env(env) else int(env.num_envs)


def _require_different(envs: list[Any]) -> None:
    if len({id(env) for env in envs}) < len(envs):
        raise ValueError("env is a list that gives the same env twice; every slot needs one of its own")


def _slots_of(n_entries: int, num_envs: int | None, *, fixed: bool) -> int:
    size = n_entries if num_envs is None else num_envs
    if size % n_entries or (fixed and size != n_entries):
        wanted = f"{n_entries}" if fixed else f"a multiple of {n_entries}"
        raise ValueError(f"num_envs={num_envs} for a list of {n_entries} envs; it must be {wanted}, or None")
    return size


def _single(request: SettingRequest, source: Source, owned: list[Host]) -> Host:
    host = request.build(source.env)
    if not source.is_instance:
        owned.append(host)
    single = isinstance(host.env, gym.Env) or is_parallel_env(host.env)
    if not single and not (is_torchrl_env(host.env) and not host.env.batch_size):
        raise TypeError(f"{source.env!r} in a list of envs gives {host.env}; a list takes single envs")
    return host
