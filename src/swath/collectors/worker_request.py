"""What a worker is made of, what must hold before it can be built, and how policies and envs travel to it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
from torch import nn

from swath.collectors.messages import Description
from swath.collectors.options import Hooks, WorkerOptions
from swath.collectors.replay import WriteRequest
from swath.options import count
from swath.rollout.hosts.base import EnvRaised, Host
from swath.rollout.hosts.sources import Source
from swath.rollout.policies.binding import RandomPolicy
from swath.rollout.policies.calling import require_finite
from swath.rollout.spaces import Leaves
from swath.seeds import derive, fresh_root


def never() -> bool:
    """Nobody ends fragments early."""
    return False


@dataclass(frozen=True)
class Seeding:
    """Where the seeds of a worker come from.

    Attributes:
        root: the user's seed.
        static: every env gets `root` itself.
        stride: envs of the worker that has most; `None` if others have as many as this one.
        envs_only: the process's generators are left alone: other threads draw from them, too.
    """

    root: int
    static: bool = False
    stride: int | None = None
    envs_only: bool = False


@dataclass(frozen=True)
class WorkerRequest:
    """All that a worker is made of.

    Attributes:
        source: the envs.
        policy: who acts in them; `None` where a factory builds it, or for random actions.
        options: what users have set for it.
        frames: asked of it at a time.
        worker: its index.
        life: which of its lives.
        seed: root of its seeds; `None` seeds nothing.
        twin: its env is one of several copies of an instance, whose random state it must not share.
        stopped: asked after each step; true ends the fragment there.
        masked: fragments have a mask, since some may lack rows.
        make: makes what answers for it, where that is another thing than a worker; it is called with the request.
        threads: torch's threads in it.
        resources: what it asks of its place.
        hooks: functions of the user that are called in the worker.
        model: what its earlier lives were like, and it must be like, too.
        writing: with what it writes for itself, if it does.
        built_by: key of the collector that asks it.
        here: it lives in the process of the user, whose own policy acts.
    """

    source: Source
    policy: Any
    options: WorkerOptions
    frames: int
    worker: int = 0
    life: int = 0
    seed: Seeding | None = None
    twin: bool = False
    stopped: Callable[[], bool] = never
    masked: bool = False
    make: Callable[..., Any] | None = None
    threads: int = 1
    resources: Mapping[str, Any] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=Hooks)
    model: Description | None = None
    writing: WriteRequest | None = None
    built_by: str = ""
    here: bool = False

    def __post_init__(self) -> None:
        count("frames_per_batch", self.frames)
        if self.policy is not None and self.options.policy_factory is not None:
            raise TypeError("policy and policy_factory are both given; give one or the other")
        if not (self.policy is None or isinstance(self.policy, RandomPolicy) or callable(self.policy)):
            raise TypeError(
                f"policy is of type {type(self.policy).__name__}; it must be None, a callable, an nn.Module "
                "or a TensorDict module"
            )
        if self.options.on_env_error == "restart" and self.source.is_instance:
            raise ValueError("on_env_error='restart' builds the env anew: pass an id or a callable, not an instance")


def first_reset(host: Host, request: WorkerRequest) -> Leaves:
    """The reset with which the first episodes begin; copies of one instance get seeds of their own."""
    seeds = None
    shared = request.source.is_instance and (request.source.copies or 1) > 1
    if shared or request.twin:
        root = fresh_root()
        seeds = [derive(root, "env", env) for env in range(host.spec.num_envs)]
    try:
        observation = host.reset_all(seeds)
    except EnvRaised as raised:
        raised.cause.add_note(f"raised by the first reset of env {raised.env}")
        raise raised.cause from raised.cause.__cause__
    if request.options.check_finite:
        require_finite("observation", host.spec.observed, observation)
    return observation


def require_possible(host: Host, request: WorkerRequest) -> None:
    """Check that the envs can do what is asked of them.

    Raises:
        RuntimeError: no entry says that an episode was truncated, and the last step of a fragment must be marked so.
        ValueError: a device that they cannot go to; or they step only as a whole, and cannot follow the rules for
            single ones. The message says what to use.
    """
    spec, options, instance = host.spec, request.options, request.source.env if request.source.is_instance else None
    options.devices.require_env(spec)
    if options.set_truncated and not spec.truncates:
        raise RuntimeError(
            "set_truncated=True, but no truncated key could be found in the environment; "
            "call env.add_truncated_keys() before handing it in"
        )
    if options.max_frames is not None and not spec.resettable:
        raise ValueError(
            f"max_frames_per_traj={options.max_frames} must reset single envs of a vector env that cannot; "
            "use one with autoreset mode DISABLED, or gymnasium's SyncVectorEnv"
        )
    if options.on_env_error == "reset" and not spec.alone and instance is not None:
        raise ValueError(f"on_env_error='reset' builds {type(instance).__name__} anew: pass a callable that returns it")


@dataclass(frozen=True)
class Frozen:
    """A value as bytes; called, it gives a copy, so that it may stand where a callable is wanted.

    Attributes:
        data: what cloudpickle made of it.
    """

    data: bytes

    @classmethod
    def of(cls, value: Any, what: str, instead: str) -> Frozen:
        """The value as it is now; weights of a module on another device travel by the CPU.

        Args:
            value: what is frozen.
            what: its name in messages.
            instead: what to pass if it cannot be pickled.

        Raises:
            TypeError: it cannot be pickled.
        """
        try:
            return cls(cloudpickle.dumps(_on_cpu(value)))
        except Exception as error:
            raise TypeError(f"{what} {type(value).__name__} cannot be pickled ({error}); pass {instead}") from error

    def __call__(self) -> Any:
        """A copy of it."""
        return pickle.loads(self.data)  # noqa: S301  it was made here


def thawed(value: Any) -> Any:
    """A copy of what was frozen; anything else as it is."""
    return value() if isinstance(value, Frozen) else value


def _on_cpu(value: Any) -> Any:
    if not isinstance(value, nn.Module):
        return value
    tensors = [tensor for tensor in value.state_dict().values() if isinstance(tensor, torch.Tensor)]
    return value if all(tensor.device.type == "cpu" for tensor in tensors) else copy.deepcopy(value).to("cpu")
