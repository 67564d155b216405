"""From what users hand in as an env to a host.

id | callable | instance ──▶ build ──▶ env(s) ──▶ host
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cloudpickle
import gymnasium as gym

from swath.errors import noted
from swath.extras import need
from swath.options import count
from swath.rollout.hosts.base import Host, closed_on_failure
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.pettingzoo import ZooEnv, is_parallel_env
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.torchrl import Fitting, TorchRLEnv, batch_of, has_makers, is_torchrl_env
from swath.rollout.hosts.vector import VectorHost, is_vector_env

PLAIN = Fitting()
ENVS = "a gymnasium env, a vector env, a TorchRL env or a PettingZoo ParallelEnv"
FORMS = f"a gymnasium id, a callable that returns an env, or {ENVS}"


@dataclass(frozen=True)
class Source:
    """One worker's env source.

    Attributes:
        env: an id, a callable or an instance.
        kwargs: keywords for the id or callable, or for the makers of a batched env that has not built its envs yet.
        copies: how many envs to step together; `None` takes the source as it is.
        copies_name: the user's name for that number, for messages.
        lends: what the callable gives is not ours to close if it does not fit together.
        keep_float64: observations of float64 stay float64, as TorchRL envs have it in any case.
    """

    env: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    copies: int | None = None
    copies_name: str = "envs_per_worker"
    lends: bool = False
    keep_float64: bool = False

    def __post_init__(self) -> None:
        if self.copies is not None:
            count(self.copies_name, self.copies)
        _require_no_aec(self.env)
        kind = type(self.env).__name__
        if not (isinstance(self.env, str) or self.is_instance or callable(self.env)):
            raise TypeError(f"an env source is of type {kind}; it must be {FORMS}")
        if self.is_instance and self.kwargs and not has_makers(self.env):
            raise ValueError(f"create_env_kwargs are for a callable or an id, not for an instance ({kind}); pass these")

    @property
    def is_instance(self) -> bool:
        """Whether the source is an env that exists already, so that it cannot be built anew."""
        return is_env_instance(self.env)


def build(source: Source, fitting: Fitting = PLAIN) -> Host:
    """Build the env or envs and their host.

    Args:
        source: what to build.
        fitting: what is asked of a TorchRL or PettingZoo env beyond that.

    Raises:
        TypeError: the source gives no env, or an instance cannot be copied.
        ValueError: a vector env with `copies`; envs that differ in their spaces; one env given several times.
        Exception: what the callable or the env's maker raised, with a note.
    """
    envs, again = _envs(source, fitting), None if source.is_instance else partial(_envs, source, fitting)
    first, mine, keep_float64 = envs[0], envs[1:] if source.is_instance else envs, source.keep_float64
    with closed_on_failure([] if source.lends else mine):
        if is_vector_env(first):
            return VectorHost(first, again, keep_float64=keep_float64)
        if isinstance(first, gym.Env):
            return EnvListHost(envs, bare=source.copies is None, make=again, keep_float64=keep_float64)
        adapt: Callable[[Any], Any] = partial(TorchRLEnv, resets=not fitting.apart)
        if is_parallel_env(first):
            adapt = partial(ZooEnv, max_steps=fitting.max_steps, keep_float64=keep_float64)
        apart = source.copies is not None and (fitting.apart or is_parallel_env(first))
        make = None if again is None else lambda: [*map(adapt, again())]
        return TensorDictHost([*map(adapt, envs)], make, apart=apart)


def _envs(source: Source, fitting: Fitting) -> list[Any]:
    """All envs of a host.

    Raises:
        ValueError: the first is batched already, or one of the copies is given twice.
    """
    first, copies, as_given, mine = source.env, source.copies, source.is_instance, list[Any]()
    with closed_on_failure([] if source.lends else mine):
        if not as_given:
            mine.append(first := make_env(source))
        is_of_torchrl = is_torchrl_env(first)
        size = first.batch_size.numel() if is_of_torchrl and first.batch_size else None
        size = first.num_envs if is_vector_env(first) else size
        if copies is not None and size is not None:
            which = f"{type(first).__name__}, which is batched already ({size} envs)"
            raise ValueError(f"{source.copies_name}={copies} for {which}; leave it out")
        if is_of_torchrl and as_given and source.kwargs:
            first.update_kwargs(dict(source.kwargs))
        batched = is_of_torchrl and copies is not None and not fitting.apart
        if batched and not as_given:
            first.close()
            mine.clear()
            envs = [batch_of([partial(make_env, source)] * (copies or 1))]
        else:
            envs = [first]
            for _ in range((copies or 1) - 1):
                env = _copy(first) if as_given else make_env(source, len(envs))
                if any(env is other for other in envs):
                    raise ValueError(f"{source.copies_name}={copies}: the env callable returned the same env twice")
                envs.append(env)
                mine.append(env)
            if batched:  # a batched env builds one env more from each maker, and closes it: that is a copy
                envs = [batch_of([partial(next, iter([_copy(env), env])) for env in envs])]
        return [fitting.applied(env) for env in envs] if is_of_torchrl else envs


def make_env(source: Source, number: int = 0) -> Any:
    """Build one env of a source that is no instance.

    Args:
        source: what to build.
        number: which of the copies it is, from 0 on.

    Raises:
        TypeError: the source gives no env.
        Exception: what the callable or the env's maker raised, with a note.
    """
    by_id = isinstance(source.env, str)
    with noted(f"the env source {source.env!r}{'' if source.copies is None else f', env {number}'}"):
        if by_id and source.env.startswith("ALE/"):
            gym.register_envs(need("ale_py", extra="atari", why=f"for {source.env}"))
        env = gym.make(source.env, **source.kwargs) if by_id else source.env(**source.kwargs)
    _require_no_aec(env)
    if not is_env_instance(env):
        what = None if env is None else type(env).__name__
        raise TypeError(f"the env source {source.env!r} returned {what}; it must return {ENVS}")
    return env


def _copy(env: Any) -> Any:
    try:
        return cloudpickle.loads(cloudpickle.dumps(env))
    except Exception as error:
        raise TypeError(f"{env} cannot be copied ({error}); pass a callable that builds it") from error


def is_env_instance(value: object) -> bool:
    """Whether this is an env of any kind, not something that builds one."""
    return isinstance(value, gym.Env) or is_vector_env(value) or is_torchrl_env(value) or is_parallel_env(value)


def _require_no_aec(env: object) -> None:
    if is_parallel_env(env, "AECEnv"):
        raise TypeError(f"{env} is an AECEnv, whose agents act in turn; hand in what aec_to_parallel makes of it")


# Services, which are `closed` or not, by identity of the innermost env. Who steps an env keeps it alive, so that its
# identity is not given anew.
_WAY_OUT = "shut that down first; shutdown(close_env=False) of a collector leaves the env open"
_steppers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def taken(env: Any, service: Any = None) -> list[Any]:
    """Return the instances among this env, or in this list, that a live service other than this one steps."""
    holders = [(instance, _steppers.get(id(_innermost(instance)))) for instance in _instances(env)]
    return [instance for instance, holder in holders if not (holder is None or holder is service or holder.closed)]


def require_free(env: Any, service: Any = None) -> None:
    """Check that no live service but this one steps this instance, or one of this list; all else is free.

    Raises:
        ValueError: one does.
    """
    for instance in taken(env, service):
        raise ValueError(f"{instance} is stepped by another collector or evaluator; {_WAY_OUT}")


def claim(env: Any, service: Any) -> None:
    """Note that this service steps the instance, or all of the list, until it is closed or gone."""
    _steppers.update({id(_innermost(instance)): service for instance in _instances(env)})


def _instances(env: Any) -> list[Any]:
    entries = env if isinstance(env, list | tuple) else [env]
    return [entry for entry in entries if is_env_instance(entry)]


def _innermost(env: Any) -> Any:
    if not is_torchrl_env(env):
        return getattr(env, "unwrapped", env)
    while isinstance(env, sys.modules["torchrl.envs"].TransformedEnv):
        env = env.base_env
    return env
