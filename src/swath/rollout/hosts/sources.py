"""From what users hand in as an env to a host.

id | callable | instance ──▶ build ──▶ env(s) ──▶ host
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, overload

import cloudpickle
import gymnasium as gym

from swath.extras import need
from swath.options import count
from swath.rollout.hosts.base import ArrayHost, Host, closed_on_failure
from swath.rollout.hosts.gymnasium import EnvListHost, require_equal_spaces
from swath.rollout.hosts.pettingzoo import ZooEnv, is_aec_env, is_parallel_env
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.torchrl import Fitting, TorchRLEnv, batch_of, has_makers, is_torchrl_env
from swath.rollout.hosts.vector import VectorHost, is_vector_env
from swath.rollout.spaces import action_leaves, observation_leaves

FORMS = (
    "a gymnasium id, a callable that returns an env, a gymnasium Env, a vector env, a TorchRL env or a PettingZoo "
    "ParallelEnv"
)


@dataclass(frozen=True)
class Source:
    """One worker's env source.

    Attributes:
        env: an id, a callable or an instance.
        kwargs: keywords for the id or callable, or for the makers of a batched env that has not built its envs yet.
        copies: how many envs to step together; `None` takes the source as it is.
        copies_name: the user's name for that number, for messages.
    """

    env: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    copies: int | None = None
    copies_name: str = "envs_per_worker"

    def __post_init__(self) -> None:
        if self.copies is not None:
            count(self.copies_name, self.copies)
        _require_no_aec(self.env)
        if not (isinstance(self.env, str) or is_env_instance(self.env) or callable(self.env)):
            raise TypeError(f"an env source is of type {type(self.env).__name__}; it must be {FORMS}")
        if is_env_instance(self.env) and self.kwargs and not has_makers(self.env):
            raise ValueError(
                "create_env_kwargs go to a callable or an id, or to the makers of a batched TorchRL env that has not "
                f"built its envs yet, but the env source is an instance ({type(self.env).__name__}); pass a callable"
            )

    @property
    def is_instance(self) -> bool:
        """Whether the source is an env that exists already, so that it cannot be built anew."""
        return is_env_instance(self.env)

    @property
    def shares_a_random_state(self) -> bool:
        """Whether copies come from one instance, so that they must be reseeded."""
        return self.is_instance and (self.copies or 1) > 1


@overload
def build(source: Source) -> ArrayHost: ...
@overload
def build(source: Source, fitting: Fitting) -> Host: ...
def build(source: Source, fitting: Fitting | None = None) -> Host:
    """Build the env or envs and their host.

    Args:
        source: what to build.
        fitting: what is asked of a TorchRL or PettingZoo env beyond that; `None` where such envs are not served.

    Raises:
        TypeError: the source gives no env, or an instance cannot be copied.
        ValueError: a vector env with `copies`; envs that differ in their spaces; one env given several times.
        Exception: what the callable or the env's maker raised, with a note.
    """
    first = source.env if source.is_instance else make_env(source)
    kind = "a TorchRL env" if is_torchrl_env(first) else "a PettingZoo env" if is_parallel_env(first) else None
    if kind is not None:
        if fitting is None:
            raise TypeError(
                f"{type(first).__name__} is {kind}, which only collectors and evaluators serve; pass a gymnasium env"
            )
        return (_torchrl_host if is_torchrl_env(first) else _parallel_host)(source, first, fitting)
    if is_vector_env(first):
        with closed_on_failure([] if source.is_instance else [first]):
            return _vector_host(source, first)
    return EnvListHost(
        _all(source, first),
        bare=source.copies is None,
        make=None if source.is_instance else lambda: _all(source, make_env(source)),
    )


def _vector_host(source: Source, env: Any) -> Host:
    if source.copies is not None:
        raise ValueError(
            f"{source.copies_name}={source.copies} for {env}, which is batched already ({env.num_envs} envs); "
            "leave it out"
        )
    return VectorHost(env, None if source.is_instance else lambda: make_env(source))


def _torchrl_host(source: Source, first: Any, fitting: Fitting) -> Host:
    with closed_on_failure([] if source.is_instance else [first]):
        if source.is_instance and source.kwargs:
            first.update_kwargs(dict(source.kwargs))
        if source.copies is not None and first.batch_size:
            raise ValueError(
                f"{source.copies_name}={source.copies} for {type(first).__name__}, which is batched already "
                f"(batch size {list(first.batch_size)}); leave it out"
            )
        if source.copies is not None and fitting.apart:
            return _torchrl_list(source, first, fitting)
        env = fitting.applied(first if source.copies is None else _torchrl_batch(source, first))
    resets = not fitting.apart
    make = None if source.is_instance else lambda: [TorchRLEnv(fitting.applied(_torchrl_anew(source)), resets=resets)]
    return TensorDictHost([TorchRLEnv(env, resets=resets)], make)


def _parallel_host(source: Source, first: Any, fitting: Fitting) -> Host:
    mine = list[Any]([] if source.is_instance else [first])
    with closed_on_failure(mine):
        envs = [ZooEnv(env, fitting.max_steps) for env in _with_copies(source, first, mine)]
        make = None if source.is_instance else lambda: [ZooEnv(make_env(source), fitting.max_steps) for _ in envs]
        return TensorDictHost(envs, make, apart=source.copies is not None)


def _torchrl_list(source: Source, first: Any, fitting: Fitting) -> Host:
    """The env and its copies, each by itself."""
    mine = list[Any]()
    with closed_on_failure(mine):
        envs = _with_copies(source, first, mine)
        hosted = [TorchRLEnv(fitting.applied(env), resets=False) for env in envs]
        make = None if source.is_instance else lambda: [_torchrl_single(source, fitting) for _ in envs]
        return TensorDictHost(hosted, make, apart=True)


def _torchrl_single(source: Source, fitting: Fitting) -> TorchRLEnv:
    return TorchRLEnv(fitting.applied(make_env(source)), resets=False)


def _torchrl_anew(source: Source) -> Any:
    return make_env(source) if source.copies is None else batch_of([lambda: make_env(source)] * source.copies)


def _torchrl_batch(source: Source, first: Any) -> Any:
    """The env and its copies in one batch."""
    n_more = (source.copies or 1) - 1
    if not source.is_instance:
        first.close()
        return batch_of([lambda: make_env(source)] * (n_more + 1))
    envs = [first, *_copies(first, n_more)]
    # A batched env builds one env more from each maker, and closes it: that is a copy.
    return batch_of([partial(next, iter([_copy(env), env])) for env in envs])


def _all(source: Source, first: Any) -> list[Any]:
    """The env and its copies; what was built is closed again if anything fails."""
    mine = [] if source.is_instance else [first]
    with closed_on_failure(mine):
        action_leaves(first.action_space)
        observation_leaves(first.observation_space)
        envs = _with_copies(source, first, mine)
        require_equal_spaces(envs)
    return envs


def _with_copies(source: Source, first: Any, mine: list[Any]) -> list[Any]:
    """The env and its copies, which are added to those that are to be closed if anything fails."""
    envs = [first]
    for env in _more(source, first):
        envs.append(env)
        _require_different(envs, source)
        mine.append(env)
    return envs


def _require_different(envs: list[Any], source: Source) -> None:
    """Check that the last env is none of those before.

    Raises:
        ValueError: it is.
    """
    if any(envs[-1] is other for other in envs[:-1]):
        raise ValueError(
            f"{source.copies_name}={source.copies}: the env callable returned the same env twice; it must build a new "
            "one"
        )


def _more(source: Source, first: Any) -> Iterator[Any]:
    n_more = (source.copies or 1) - 1
    if source.is_instance:
        return iter(_copies(first, n_more) if n_more else ())
    return (make_env(source) for _ in range(n_more))


def make_env(source: Source) -> Any:
    """Build one env of a source that is no instance.

    Raises:
        TypeError: the source gives no env.
        Exception: what the callable or the env's maker raised, with a note.
    """
    maker: Callable[..., Any] = _make_by_id if isinstance(source.env, str) else source.env
    args = (source.env,) if isinstance(source.env, str) else ()
    try:
        env = maker(*args, **source.kwargs)
    except Exception as error:
        error.add_note(f"raised while the env source {source.env!r} was built")
        raise
    _require_no_aec(env)
    if not is_env_instance(env):
        raise TypeError(
            f"the env source {source.env!r} returned {_described(env)}; it must return a gymnasium env, a TorchRL env "
            "or a PettingZoo ParallelEnv"
        )
    return env


def _make_by_id(name: str, **kwargs: Any) -> gym.Env[Any, Any]:
    if name.startswith("ALE/"):
        gym.register_envs(need("ale_py", extra="atari", why=f"for {name}"))
    return gym.make(name, **kwargs)


def _copy(env: Any) -> Any:
    return _copies(env, 1)[0]


def _copies(env: Any, n_copies: int) -> list[Any]:
    try:
        frozen = cloudpickle.dumps(env)
    except Exception as error:
        raise TypeError(f"{env} cannot be copied ({error}); pass a callable that builds it") from error
    return [cloudpickle.loads(frozen) for _ in range(n_copies)]


def is_env_instance(value: object) -> bool:
    """Whether this is an env of any kind, not something that builds one."""
    return isinstance(value, gym.Env) or is_vector_env(value) or is_torchrl_env(value) or is_parallel_env(value)


def _require_no_aec(env: object) -> None:
    if is_aec_env(env):
        raise TypeError(
            f"{env} is a PettingZoo AECEnv, whose agents act in turn; hand in a ParallelEnv, for instance what "
            "pettingzoo.utils.aec_to_parallel makes of it"
        )


def _described(value: object) -> str:
    return "None" if value is None else type(value).__name__


class Service(Protocol):
    """What steps envs until it is closed."""

    @property
    def closed(self) -> bool:
        """Whether it is over."""


_steppers: dict[int, weakref.ref[Any]] = {}
"""By identity of the innermost env. Who steps an env keeps it alive, so that its identity is not given anew."""


def require_free(env: Any) -> None:
    """Check that no live service steps this instance, or one of this list; all else is free.

    Raises:
        ValueError: one does.
    """
    for instance in _instances(env):
        stepper = _steppers.get(id(_innermost(instance)))
        service = None if stepper is None else stepper()
        if service is not None and not service.closed:
            raise ValueError(
                f"{instance} is stepped by another collector or evaluator that is not shut down; shut that down "
                "first, or pass an env of its own, an id or a callable"
            )


def claim(env: Any, service: Service) -> None:
    """From now on this service steps the instance, or those of the list, until it is closed or gone."""
    for instance in _instances(env):
        _steppers[id(_innermost(instance))] = weakref.ref(service)


def _instances(env: Any) -> list[Any]:
    entries = env if isinstance(env, list | tuple) else [env]
    return [entry for entry in entries if is_env_instance(entry)]


def _innermost(env: Any) -> Any:
    if not is_torchrl_env(env):
        return getattr(env, "unwrapped", env)
    while isinstance(env, sys.modules["torchrl.envs"].TransformedEnv):
        env = env.base_env
    return env
