"""What can be set for one worker, as users name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from swath.collect.making.devices import Devices
from swath.options import Entries, OnEnvError, one_of, optional_count
from swath.rollout.policies.calling import ExplorationType, as_exploration_type

Device: TypeAlias = torch.device | str | int | None


@dataclass(frozen=True, kw_only=True)
class EveryWorker:
    """What every collector takes; meanings as in `Collector`. `by_worker` of them may be lists of one per worker."""

    policy_factory: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
    create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    envs_per_worker: int | None = None
    device: Device | Sequence[Device] = None
    storing_device: Device | Sequence[Device] = None
    env_device: Device | Sequence[Device] = None
    policy_device: Device | Sequence[Device] = None
    max_frames_per_traj: int | None = None
    reset_at_each_iter: bool = False
    exploration_type: ExplorationType | str = ExplorationType.RANDOM
    trust_policy: bool | None = None
    on_env_error: OnEnvError = "raise"
    check_finite: bool = False


@dataclass(frozen=True, kw_only=True)
class LocalWorker:
    """What `RayCollector` takes in `collector_kwargs`; meanings as in `Collector`."""

    set_truncated: bool = False
    compile_policy: bool | Mapping[str, Any] | None = None
    cudagraph_policy: bool | Mapping[str, Any] | None = None
    auto_register_policy_transforms: bool | None = None
    compact_obs: bool = False
    track_policy_version: Any = False
    track_traj_ids: bool = True


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(EveryWorker, LocalWorker):
    """What can be set for every worker alone: single values, checked."""

    def __post_init__(self) -> None:
        one_of("on_env_error", self.on_env_error, OnEnvError)
        if self.policy_factory is not None:
            self.factory()
        _ = self.devices, self.exploration, self.max_frames, self.env_kwargs

    @property
    def devices(self) -> Devices:
        """Where things are."""
        return Devices.resolve(self.device, self.env_device, self.policy_device, self.storing_device)

    @property
    def exploration(self) -> ExplorationType:
        """How the policy picks actions."""
        return as_exploration_type(self.exploration_type)

    @property
    def max_frames(self) -> int | None:
        """Most steps of an episode; `None` for no limit."""
        return optional_count("max_frames_per_traj", self.max_frames_per_traj)

    @property
    def entries(self) -> Entries:
        """What a batch holds."""
        return Entries(self.track_traj_ids, bool(self.track_policy_version), self.compact_obs)

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """Keywords for the env source.

        Raises:
            TypeError: not a dict with names as keys.
        """
        kwargs = self.create_env_kwargs or {}
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise TypeError(f"create_env_kwargs is {kwargs!r}; it must be a dict of keywords for the env source")
        return kwargs

    def factory(self) -> Callable[..., Any]:
        """What builds the policy.

        Raises:
            ValueError: a list of another length than 1.
            TypeError: not callable.
        """
        factory: Any = self.policy_factory
        if isinstance(factory, Sequence):
            if len(factory) != 1:
                raise ValueError(f"policy_factory has {len(factory)} entries for 1 worker; give one per worker")
            factory = factory[0]
        if not callable(factory):
            raise TypeError(
                f"policy_factory is of type {type(factory).__name__}; it must be a callable that builds the policy"
            )
        built: Callable[..., Any] = factory
        return built
