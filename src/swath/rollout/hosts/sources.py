"""Env sources, and the hosts built from them.

id | callable | instance ──▶ build ──▶ env(s) ──▶ host
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.vector import VectorWrapper

from swath.errors import BadAnswer, note_source
from swath.extras import import_extra
from swath.options import count
from swath.rollout.hosts.base import Host, MakeEnvs, close_on_failure
from swath.rollout.hosts.env_server import Processes
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.parallel import ProcessHost
from swath.rollout.hosts.parallel_plan import PlannedEnv, adapt_torchrl_env, parallel_batch_of, plan_of_share
from swath.rollout.hosts.parallel_zoo import ZooEntries, ZooProcesses
from swath.rollout.hosts.pettingzoo import ZooEnv, is_parallel_env
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.tensors import BatchedEnv, TensorHost, tensor_device
from swath.rollout.hosts.torchrl import EnvOptions, batch_of, has_makers, is_torchrl_env
from swath.rollout.hosts.vector import RESET, VectorHost, is_batched_env, is_envpool, is_vector_env
from swath.rollout.plans import NoPlan

DEFAULT_OPTIONS = EnvOptions()
ENVS = "a gymnasium env, a vector env, a TorchRL env or a PettingZoo ParallelEnv"
FORMS = f"a gymnasium id, a callable that returns an env, or {ENVS}"


@dataclass(frozen=True)
class Source:
    """One worker's env source.

    Attributes:
        env: an id, a callable or an instance.
        kwargs: keywords for the id or callable, or for the factories of a batched env that has not built its envs.
        copies: number of envs to step together; `None` for a single env without env dimension, or a batched env.
        copies_name: the name of the user's option for that number, for messages.
        owned_by_user: the envs that the callable returns are not closed if building fails.
        keep_float64: observations of float64 stay float64; float64 of TorchRL envs always stays.
        processes: the processes that the envs live in; `None` for this one.
        first: number of the first copy, for messages.
    """

    env: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    copies: int | None = None
    copies_name: str = "envs_per_worker"
    owned_by_user: bool = False
    keep_float64: bool = False
    processes: Processes | None = None
    first: int = 0

    def __post_init__(self) -> None:
        if self.copies is not None:
            count(self.copies_name, self.copies)
        if self.processes is not None:
            self._require_shares(self.processes.number)
        _require_no_aec(self.env)
        kind = type(self.env).__name__
        if not (isinstance(self.env, str) or self.is_instance or callable(self.env)):
            raise TypeError(f"an env source is of type {kind}; it must be {FORMS}")
        if self.is_instance and self.kwargs and not has_makers(self.env):
            raise ValueError(f"create_env_kwargs are for a callable or an id, not for an instance ({kind}); pass these")

    def _require_shares(self, n_processes: int) -> None:
        """Check that the envs can be shared out to processes.

        Raises:
            ValueError: an instance, or fewer envs than processes.
        """
        if self.is_instance or self.owned_by_user:
            kind = type(self.env).__name__
            raise ValueError(
                f"env_processes={n_processes} build their own envs: pass an id or a callable, no instance ({kind})"
            )
        if self.copies is not None and self.copies < n_processes:
            raise ValueError(
                f"env_processes={n_processes} for {self.copies_name}={self.copies}: each process needs an env; "
                "use fewer processes"
            )

    @property
    def is_instance(self) -> bool:
        """Tell whether the source is an env, which cannot be built again."""
        return is_env_instance(self.env)


def build(source: Source, options: EnvOptions = DEFAULT_OPTIONS) -> Host:
    """Build the env or envs and their host.

    Args:
        source: the env source of one worker.
        options: options of a TorchRL or PettingZoo env.

    Raises:
        TypeError: the source returns no env, or an instance cannot be copied.
        ValueError: a vector env with `copies`; envs that differ in their spaces; the same env several times.
        Exception: raised by the callable or the env's constructor, with a note.
    """
    if source.processes is not None:
        return _build_in_processes(source, source.processes, options)
    envs, rebuild = _envs(source, options), None if source.is_instance else partial(_envs, source, options)
    first, built, keep_float64 = envs[0], envs[1:] if source.is_instance else envs, source.keep_float64
    with close_on_failure([] if source.owned_by_user else built):
        if is_vector_env(first):
            return vector_host(first, rebuild, keep_float64=keep_float64)
        if isinstance(first, gym.Env):
            return EnvListHost(envs, bare=source.copies is None, make=rebuild, keep_float64=keep_float64)
        adapt: Callable[[Any], Any] = partial(adapt_torchrl_env, autoresets=not options.separate, plans=options.plans)
        if is_parallel_env(first):
            adapt = partial(_zoo_env, source=source, options=options)
        separate = source.copies is not None and (options.separate or is_parallel_env(first))
        make = None if rebuild is None else lambda: [*map(adapt, rebuild())]
        return TensorDictHost([*map(adapt, envs)], make, separate=separate)


def _build_in_processes(source: Source, processes: Processes, options: EnvOptions) -> Host:
    """Build the envs in processes, and their host.

    Raises:
        ValueError: a batched TorchRL env.
        Exception: what building an env raised.
    """
    shares, copies = [partial(_build_share, share, options) for share in _shares_of(source)], source.copies
    host = ProcessHost(shares, processes)
    if host.spec.library == "gymnasium":
        return host
    if host.spec.library == "pettingzoo":
        with close_on_failure([host]):
            stand_in = _zoo_env(make_env(source), source, options)
            stand_in.close()
            return ZooProcesses(stand_in, host)

    def adapt(processes: ProcessHost) -> PlannedEnv:
        env = options.apply(parallel_batch_of([partial(make_env, source)] * (copies or 1)))
        return PlannedEnv(env, autoresets=True, processes=processes)

    with close_on_failure([host]):
        if copies is None:
            message = f"env_processes={processes.number} for a batch of TorchRL envs; return one env"
            raise ValueError(f"{message}, and say with {source.copies_name} how many to build")
        return TensorDictHost([adapt(host)], lambda: [adapt(ProcessHost(shares, processes))], separate=False)


def _build_share(source: Source, options: EnvOptions) -> Host:
    """Build the host of the envs of one process; TorchRL's envs step by their plan.

    Raises:
        TypeError: TorchRL's envs have no plan.
        ValueError: a PettingZoo env without a number of copies.
    """
    host = build(source, EnvOptions(separate=options.separate))
    if not isinstance(host, TensorDictHost):
        return host
    with close_on_failure([host]):
        if isinstance(host.envs[0], ZooEnv):
            if source.copies is None:
                raise ValueError(f"env_processes for a single ParallelEnv; say with {source.copies_name} how many")
            return ZooEntries([_zoo_env(env.env, source, options) for env in host.envs])
        if options.separate:
            return host
        try:
            return plan_of_share(host.env, plans=options.plans)
        except NoPlan as reason:
            raise TypeError(f"env_processes step TorchRL envs by their plan, and these have none: {reason}") from None


def _zoo_env(env: Any, source: Source, options: EnvOptions) -> ZooEnv:
    return ZooEnv(env, options.max_steps, keep_float64=source.keep_float64)


def _shares_of(source: Source) -> list[Source]:
    """Return the source of each env process."""
    assert source.processes is not None
    number, copies = source.processes.number, source.copies
    if copies is None:
        return [replace(source, processes=None)] * number
    starts = [copies * index // number for index in range(number + 1)]
    return [replace(source, processes=None, copies=stop - start, first=start) for start, stop in pairwise(starts)]


def vector_host(env: Any, make: MakeEnvs | None, *, keep_float64: bool) -> VectorHost:
    """Return the host of an env that steps as a batch, of arrays or of tensors, as its first reset shows.

    Gymnasium's own vector envs are not reset for that.

    Args:
        env: the env.
        make: returns a list with an env of the same kind.
        keep_float64: observations of float64 stay float64.
    """
    if is_batched_env(env):
        env, rebuild = BatchedEnv(env), make
        make = None if rebuild is None else lambda: [*map(BatchedEnv, rebuild())]
    inner = env.unwrapped if isinstance(env, VectorWrapper) else env
    converts = _converts_arrays(env)
    if not converts and (is_envpool(env) or type(inner).__module__.partition(".")[0] in ("gymnasium", "ale_py")):
        return VectorHost(env, make, keep_float64=keep_float64)
    probe = env if converts else inner  # other wrappers may count or average what resets return
    with note_source(f"the first reset of {env}"):
        answer = probe.reset()
        if not isinstance(answer, tuple):
            raise BadAnswer(f"it returned {type(answer).__name__}; {RESET}")
    first, device = answer if probe is env else None, tensor_device(answer[0])
    if device is None:
        return VectorHost(env, make, first=first, keep_float64=keep_float64)
    return TensorHost(env, make, device=device, first=first, keep_float64=keep_float64)


def _converts_arrays(env: Any) -> bool:
    """Tell whether a vector env has a gymnasium wrapper that converts arrays between libraries."""
    while isinstance(env, VectorWrapper):
        if any(base.__name__ == "ArrayConversion" for base in type(env).__mro__):
            return True
        env = env.env
    return False


def _envs(source: Source, options: EnvOptions) -> list[Any]:
    """Build all envs of a host.

    Raises:
        ValueError: copies of a batched env, or the same env twice.
    """
    first, copies, is_instance, built = source.env, source.copies, source.is_instance, list[Any]()
    with close_on_failure([] if source.owned_by_user else built):
        if not is_instance:
            built.append(first := make_env(source, source.first))
        is_of_torchrl = is_torchrl_env(first)
        size = first.batch_size.numel() if is_of_torchrl and first.batch_size else None
        if is_vector_env(first):
            size = first.get_wrapper_attr("num_envs") if is_batched_env(first) else first.num_envs
        if copies is not None and size is not None:
            description = f"{type(first).__name__}, which is batched already ({size} envs)"
            raise ValueError(f"{source.copies_name}={copies} for {description}; leave it out")
        if is_of_torchrl and is_instance and source.kwargs:
            first.update_kwargs(dict(source.kwargs))
        batched = is_of_torchrl and copies is not None and not options.separate
        if batched and not is_instance:
            first.close()
            built.clear()
            envs = [batch_of([partial(make_env, source)] * (copies or 1))]
        else:
            envs = [first]
            for _ in range((copies or 1) - 1):
                env = _copy(first) if is_instance else make_env(source, source.first + len(envs))
                if any(env is other for other in envs):
                    raise ValueError(f"{source.copies_name}={copies}: the env callable returned the same env twice")
                envs.append(env)
                built.append(env)
            if batched:  # a batched env builds one more env from each factory and closes it: that one is a copy
                envs = [batch_of([partial(next, iter([_copy(env), env])) for env in envs])]
        return [options.apply(env) for env in envs] if is_of_torchrl else envs


def make_env(source: Source, number: int = 0) -> Any:
    """Build one env of a source that is no instance.

    Args:
        source: an id or a callable.
        number: number of the copy, from 0 on.

    Raises:
        TypeError: the source returns no env.
        Exception: raised by the callable or the env's constructor, with a note.
    """
    by_id = isinstance(source.env, str)
    with note_source(f"the env source {source.env!r}{'' if source.copies is None else f', env {number}'}"):
        if by_id and source.env.startswith("ALE/"):
            gym.register_envs(import_extra("ale_py", extra="atari", purpose=f"for {source.env}"))
        env = gym.make(source.env, **source.kwargs) if by_id else source.env(**source.kwargs)
    _require_no_aec(env)
    if not is_env_instance(env):
        returned = None if env is None else type(env).__name__
        raise TypeError(f"the env source {source.env!r} returned {returned}; it must return {ENVS}")
    return env


def _copy(env: Any) -> Any:
    try:
        return cloudpickle.loads(cloudpickle.dumps(env))
    except Exception as error:
        raise TypeError(f"{env} cannot be copied ({error}); pass a callable that builds it") from error


def is_env_instance(value: object) -> bool:
    """Tell whether an object is an env of any kind, not a function that builds one."""
    return isinstance(value, gym.Env) or is_vector_env(value) or is_torchrl_env(value) or is_parallel_env(value)


def _require_no_aec(env: object) -> None:
    if is_parallel_env(env, "AECEnv"):
        raise TypeError(f"{env} is an AECEnv, whose agents act in turn; pass aec_to_parallel(env)")


# Services, which have an attribute `closed`, by identity of the innermost env that they step. A service keeps its env
# alive, so that the identity is not reused.
_ADVICE = "shut that down first; shutdown(close_env=False) of a collector leaves the env open"
_services: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def used_by_others(env: Any, service: Any = None) -> list[Any]:
    """Return the env instances of an env or a list that another live service steps."""
    users = [(instance, _services.get(id(_base_env(instance)))) for instance in _instances(env)]
    return [instance for instance, user in users if not (user is None or user is service or user.closed)]


def require_unused(env: Any, service: Any = None) -> None:
    """Check that no other live service steps an env instance, or an instance in a list.

    Raises:
        ValueError: another service steps one.
    """
    for instance in used_by_others(env, service):
        raise ValueError(f"{instance} is stepped by another collector or evaluator; {_ADVICE}")


def claim(env: Any, service: Any) -> None:
    """Register that a service steps an env instance, or the instances of a list, until it is closed or collected."""
    _services.update({id(_base_env(instance)): service for instance in _instances(env)})


def _instances(env: Any) -> list[Any]:
    entries = env if isinstance(env, list | tuple) else [env]
    return [entry for entry in entries if is_env_instance(entry)]


def _base_env(env: Any) -> Any:
    if not is_torchrl_env(env):
        return getattr(env, "unwrapped", env)
    while isinstance(env, sys.modules["torchrl.envs"].TransformedEnv):
        env = env.base_env
    return env
