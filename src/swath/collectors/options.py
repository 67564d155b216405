"""The arguments of collectors: each class takes the fields of one frozen dataclass, which checks itself.

EveryWorker, LocalWorker ──▶ WorkerOptions
     │            │
SharedOptions     │          options of all collectors
 │     └─▶ LocalOptions      and of collectors on this machine
 │          ├─▶ CollectorOptions
 └─▶ FleetOptions ├─▶ MultiOptions
          └─▶ RayOptions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Protocol, TypeAlias, get_args

import torch

from swath.errors import warn_of_no_effect
from swath.keys import Key, keys_of
from swath.options import FinalObservation, OnEnvError, Restarts, Survival, TrajFormat, count, one_of, positive
from swath.rollout.hosts.torchrl import EnvOptions
from swath.rollout.policies.calling import ExplorationType, as_device, as_exploration

Device: TypeAlias = torch.device | str | int | None


class Env(Protocol):
    """An env of gymnasium, TorchRL or PettingZoo."""

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begin an episode."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Advance by one step."""


# A gymnasium id, what returns an env, or an env.
EnvSource: TypeAlias = str | Callable[..., Any] | Env
# A module or a callable; `None` for random actions.
Policy: TypeAlias = Callable[..., Any] | None


@dataclass(frozen=True)
class Trajectories:
    """How batches are made of episodes.

    Attributes:
        split: one row per trajectory in each batch.
        per_batch: batches of this many complete episodes.
        per_write: episodes per write to a replay buffer; `None` for all that are complete.
        layout: `"padded"` (also `None`) or `"cat"`.
    """

    split: bool = False
    per_batch: int | None = None
    per_write: int | None = None
    layout: TrajFormat | None = None

    def __post_init__(self) -> None:
        if self.layout not in (None, *get_args(TrajFormat)):
            raise ValueError(f"traj_format={self.layout!r} must be 'padded' or 'cat'")
        if self.per_batch is not None:
            count("trajs_per_batch", self.per_batch)
            if self.split:
                raise ValueError("split_trajs and trajs_per_batch are two ways to the same end; set one of them")
        if self.per_write is not None:
            count("trajs_per_write", self.per_write)
        for name, value in (("trajs_per_write", self.per_write), ("traj_format", self.layout)):
            if self.per_batch is None and value is not None:
                raise ValueError(f"{name}={value!r} needs trajs_per_batch; set it, or leave {name} out")


@dataclass(frozen=True)
class Hooks:
    """Functions of the user that are called around a fragment.

    Attributes:
        postproc: turns a batch into the batch that is delivered.
        before: called before each fragment.
        after: called with each delivered batch.
    """

    postproc: Callable[[Any], Any] | None = None
    before: Callable[[], Any] | None = None
    after: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        names = {"postproc": self.postproc, "pre_collect_hook": self.before, "post_collect_hook": self.after}
        for name, hook in names.items():
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} is of type {type(hook).__name__}; it must be callable or None")


@dataclass(frozen=True, kw_only=True)
class EveryWorker:
    """Options of workers that every collector takes; meanings as in `Collector`.

    With several workers, the factory, the keywords of envs and the devices may be lists of one per worker.
    """

    policy_factory: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
    create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    envs_per_worker: int | None = None
    env_processes: int | None = None
    step_timeout_s: float = 300.0
    overlap: bool = False
    device: Device | Sequence[Device] = None
    storing_device: Device | Sequence[Device] = None
    env_device: Device | Sequence[Device] = None
    policy_device: Device | Sequence[Device] = None
    max_frames_per_traj: int | None = None
    reset_at_each_iter: bool = False
    exploration_type: ExplorationType | str = ExplorationType.RANDOM
    trust_policy: bool | None = None
    plans: bool = True
    on_env_error: OnEnvError = "raise"
    check_finite: bool = False
    keep_float64: bool = False
    final_observation: FinalObservation = "required"
    info_keys: Sequence[Key] = ()


@dataclass(frozen=True, kw_only=True)
class LocalWorker:
    """Options of workers that `RayCollector` takes in `collector_kwargs`; meanings as in `Collector`."""

    set_truncated: bool = False
    compile_policy: bool | Mapping[str, Any] | None = None
    cudagraph_policy: bool | Mapping[str, Any] | None = None
    auto_register_policy_transforms: bool | None = None
    compact_obs: bool = False
    track_policy_version: Any = False
    track_traj_ids: bool = True


@dataclass(frozen=True)
class Devices:
    """The devices that follow from a collector's arguments.

    Attributes:
        env: where the env runs; `None` does not move it.
        policy: where the policy runs; `None` does not move it.
        storing: device of batches; `None` sets no device.
        common: the argument `device`.
    """

    env: torch.device | None = None
    policy: torch.device | None = None
    storing: torch.device | None = None
    common: torch.device | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(EveryWorker, LocalWorker):
    """The options of one worker: single values, checked."""

    def __post_init__(self) -> None:
        one_of("on_env_error", self.on_env_error, OnEnvError)
        positive("step_timeout_s", self.step_timeout_s)
        if self.overlap and (self.env_processes or 0) < 2:
            message = f"overlap=True steps halves of env processes, but env_processes={self.env_processes!r}"
            raise ValueError(f"{message}; set it to 2 or more, or leave overlap out")
        if self.overlap and self.check_finite:
            raise ValueError(
                "overlap=True steps halves, whose steps are not checked; leave check_finite=True or overlap=True out"
            )
        one_of("final_observation", self.final_observation, FinalObservation)
        if isinstance(self.info_keys, str):
            raise TypeError(f"info_keys={self.info_keys!r} is one key; pass a list: [{self.info_keys!r}]")
        for key in self.info_keys:
            keys_of("info_keys", key)
        if self.policy_factory is not None and not callable(self.policy_factory):
            kind = type(self.policy_factory).__name__
            raise TypeError(f"policy_factory is of type {kind}; it must be a callable that builds the policy")
        _ = self.devices, self.exploration, self.max_frames, self.env_kwargs

    @property
    def devices(self) -> Devices:
        """Return the devices; `device` is not for envs, unless they can go there."""
        names = ("device", "env_device", "policy_device", "storing_device")
        common, env, policy, storing = (as_device(name, getattr(self, name)) for name in names)
        policy = policy or common
        return Devices(env, policy, storing or common or (env if env == policy else None), common)

    @property
    def env_options(self) -> EnvOptions:
        """Return the options of TensorDict envs."""
        devices = self.devices
        return EnvOptions(self.max_frames, devices.env or devices.common, plans=self.plans)

    @property
    def exploration(self) -> ExplorationType:
        """Return how the policy picks actions."""
        return as_exploration(self.exploration_type)

    @property
    def max_frames(self) -> int | None:
        """Return the most steps of an episode; `None` for no limit."""
        return limit("max_frames_per_traj", self.max_frames_per_traj)

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """Return keywords for the env source; raise `TypeError` for anything but a dict with names as keys."""
        kwargs = self.create_env_kwargs or {}
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise TypeError(f"create_env_kwargs is {kwargs!r}; it must be a dict of keywords for the env source")
        return kwargs


LISTED_BY_WORKER = ("policy_factory", "create_env_kwargs", "device", "storing_device", "env_device", "policy_device")
"""Options of which a list has one entry per worker."""


@dataclass(frozen=True, kw_only=True)
class SharedOptions(EveryWorker):
    """Options of all collectors."""

    create_env_fn: EnvSource | Sequence[EnvSource] = field(kw_only=False)
    policy: Policy = field(default=None, kw_only=False)
    frames_per_batch: int | Sequence[int]
    total_frames: int | None = -1
    init_random_frames: int | None = None
    split_trajs: bool | None = None
    trajs_per_batch: int | None = None
    replay_buffer: Any = None
    postproc: Callable[[Any], Any] | None = None
    pre_collect_hook: Callable[[], Any] | None = None
    post_collect_hook: Callable[[Any], Any] | None = None
    no_cuda_sync: bool | None = False
    weight_updater: Any = None
    weight_sync_schemes: Mapping[str, Any] | None = None
    weight_recv_schemes: Mapping[str, Any] | None = None
    seed: int | None = None
    progress: Any = None


@dataclass(frozen=True, kw_only=True)
class LocalOptions(LocalWorker, SharedOptions):
    """Options of collectors on this machine, and of `RayCollector` in `collector_kwargs`."""

    trajs_per_write: int | None = None
    traj_format: TrajFormat | None = None
    worker_idx: int | None = None
    return_same_td: bool = False
    reset_when_done: bool = True
    use_buffers: bool | None = None
    extend_buffer: bool = True

    def __post_init__(self) -> None:
        if self.return_same_td:
            raise ValueError("return_same_td=True: every batch owns its memory here; leave it out")
        if not self.reset_when_done:
            raise ValueError("reset_when_done=False: an env that is done always begins another episode; leave it out")
        if self.use_buffers is not None:
            warn_of_no_effect("use_buffers", "buffers are always used")
        if not self.extend_buffer:
            warn_of_no_effect("extend_buffer", "a replay buffer is always extended")
        with_method("replay_buffer", self.replay_buffer, "extend")
        trajectories, *_ = self.trajectories, self.hooks, self.frames, self.end, self.random_frames, self.index
        if self.seed is not None:
            whole_number("seed", self.seed)
        if trajectories.split and not self.track_traj_ids:
            raise ValueError("split_trajs=True needs trajectory ids: leave track_traj_ids at True")
        if trajectories.per_write is not None and self.replay_buffer is None:
            raise ValueError("trajs_per_write is the size of writes to a replay buffer: pass replay_buffer=")
        if trajectories.layout == "padded" and self.replay_buffer is not None:
            warn_of_no_effect("traj_format='padded'", "episodes are written to a replay buffer flat")

    @property
    def index(self) -> int:
        """Return the index of this collector inside a larger one."""
        return 0 if self.worker_idx is None else count("worker_idx", self.worker_idx, minimum=0)

    @property
    def trajectories(self) -> Trajectories:
        """Return how batches are made of episodes."""
        return Trajectories(bool(self.split_trajs), self.trajs_per_batch, self.trajs_per_write, self.traj_format)

    @property
    def hooks(self) -> Hooks:
        """Return the functions of the user around fragments."""
        return Hooks(self.postproc, self.pre_collect_hook, self.post_collect_hook)

    @property
    def frames(self) -> int:
        """Return the frames of a batch."""
        frames = self.frames_per_batch
        return count("frames_per_batch", sum(frames) if isinstance(frames, list | tuple) else frames)

    @property
    def end(self) -> int | None:
        """Return the lower bound of the frames of the run; `None` for no end."""
        total = -1 if self.total_frames is None else count("total_frames", self.total_frames, minimum=None)
        return None if total < 0 else total

    @property
    def random_frames(self) -> int:
        """Return the frames to collect with random actions first."""
        return limit("init_random_frames", self.init_random_frames) or 0


@dataclass(frozen=True, kw_only=True)
class FleetOptions(SharedOptions):
    """Options of collectors with workers elsewhere."""

    prefetch: int | None = None
    max_staleness: int | None = None
    restarts: Restarts = Survival.restarts
    min_workers: int | None = None
    fragment_timeout_s: float | None = 600.0
    placement_timeout_s: float | None = 300.0

    @property
    def survival(self) -> Survival:
        """Return the limits of restarts and waits."""
        return Survival(self.restarts, self.min_workers, self.fragment_timeout_s, self.placement_timeout_s)


@dataclass(frozen=True, kw_only=True)
class CollectorOptions(LocalOptions):
    """Options of `Collector`."""

    interruptor: Any = None
    backend: str | None = None
    backend_options: Mapping[str, Any] | None = None
    num_collectors: int | None = None
    sync: bool | None = None


@dataclass(frozen=True, kw_only=True)
class MultiOptions(LocalOptions, FleetOptions):
    """Options of `MultiSyncCollector` and `MultiAsyncCollector`."""

    sync: bool | None = None
    num_workers: int | None = None
    preemptive_threshold: float | None = None
    cat_results: str | int | None = None
    num_threads: int | None = None
    num_sub_threads: int = 1
    init_fn: Callable[[], Any] | None = None
    update_at_each_batch: bool = False
    backend: str | None = "process"
    collector_class: Any = None


@dataclass(frozen=True, kw_only=True)
class RayOptions(FleetOptions):
    """Options of `RayCollector`."""

    max_frames_per_traj: int | None = -1
    init_random_frames: int | None = -1
    split_trajs: bool | None = False
    no_cuda_sync: bool | None = None
    sync: bool | None = False
    num_collectors: int | None = None
    ray_init_config: Mapping[str, Any] | None = None
    remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    collector_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    collector_class: Any = "single"
    num_workers_per_collector: int = 1
    update_after_each_batch: bool = False
    max_weight_update_interval: int = -1
    use_env_creator: bool = False

    @property
    def shared(self) -> dict[str, Any]:
        """Return the options that all collectors have, by name."""
        return {option.name: getattr(self, option.name) for option in fields(SharedOptions)}


@dataclass(frozen=True)
class Automatic:
    """The intervals at which a collector publishes its policy by itself.

    Attributes:
        each_draw: when the user draws again.
        first_draw: also at the first draw.
        most_fragments: most fragments of a worker on one version, before it picks up a newer one; `None` for no limit.
    """

    each_draw: bool = False
    first_draw: bool = False
    most_fragments: int | None = None


@dataclass(frozen=True, kw_only=True)
class AnyOptions(CollectorOptions, MultiOptions, RayOptions):
    """Options of `Collector(backend=…)`, and of the service behind every collector.

    Options that its class does not take are at their defaults.
    """

    def require_consistent(self, n_workers: int) -> None:
        """Raise for options that contradict each other, or do not fit the number of workers."""
        _ = self.survival, self.automatic
        if self.weight_updater is not None and self.weight_sync_schemes is not None:
            raise TypeError("weight_updater and weight_sync_schemes are both given; give one or the other")
        for name in ("prefetch", "max_staleness"):
            if (value := getattr(self, name)) is not None:
                count(name, value, minimum=0)
        if self.in_order and self.max_staleness is not None:
            raise ValueError("max_staleness is for asynchronous collection; synchronous batches are never stale")
        for name in ("preemptive_threshold", "cat_results"):
            if (value := getattr(self, name)) not in (None, "stack") and not self.in_order:
                raise ValueError(f"{name}={value!r} is for synchronous collection; leave it out")
        if self.preemptive_threshold is not None and not 0 <= self.preemptive_threshold <= 1:
            raise ValueError(f"preemptive_threshold={self.preemptive_threshold!r} must be between 0 and 1")
        if not (self.cat_results in (None, "stack") or type(self.cat_results) is int):
            raise ValueError(f"cat_results={self.cat_results!r} must be None, 'stack' or an int")
        if self.min_workers is not None and self.min_workers > n_workers:
            raise ValueError(f"min_workers={self.min_workers} must be between 1 and the number of workers, {n_workers}")

    def require_direct(self) -> None:
        """Check that options of other classes are at their defaults.

        Raises:
            ValueError: an option needs workers elsewhere.
        """
        if self.num_collectors is not None and self.num_collectors > 1:
            raise ValueError(f"num_collectors={self.num_collectors}: backend 'direct' takes at most one collector")
        local, others = defaults(CollectorOptions), [defaults(MultiOptions), defaults(RayOptions)]
        names = {name for options_of_class in others for name in options_of_class.keys() - local}
        harmless = {name: [options_of_class.get(name) for options_of_class in others] for name in names}
        harmless |= {"sync": [None], "backend_options": [None, {}], "weight_sync_schemes": [None]}
        for name, values in harmless.items():
            value = getattr(self, name)
            if value not in values:
                raise ValueError(
                    f"{name}={value!r} is for collectors with workers elsewhere; backend 'direct' has one worker in "
                    "this process, which acts with the policy itself: leave it out, or set backend='process' or 'ray'"
                )

    @property
    def in_process(self) -> bool:
        """Return whether the one worker lives in this process, in the thread that draws."""
        return self.backend in (None, "direct")

    @property
    def in_order(self) -> bool:
        """Return whether every batch has a share of every worker; otherwise every batch is of one worker."""
        return self.sync is not False

    @property
    def ahead(self) -> int:
        """Return how many batches or fragments are requested ahead."""
        return int(not self.in_order) if self.prefetch is None else self.prefetch

    @property
    def cat_dim(self) -> int | None:
        """Return the dimension along which shares are concatenated; `None` stacks them."""
        return self.cat_results if isinstance(self.cat_results, int) else None

    @property
    def automatic(self) -> Automatic:
        """Return when weights are published automatically; raise `ValueError` for an interval below -1."""
        limit = count("max_weight_update_interval", self.max_weight_update_interval, minimum=-1)
        each_draw = self.update_at_each_batch or self.update_after_each_batch or limit == 0
        return Automatic(
            each_draw, self.in_order and self.update_at_each_batch, None if each_draw or limit < 0 else limit
        )


def whole_number(name: str, value: Any) -> int:
    """Return the value as an int; raise `TypeError` if it is not one, or a bool."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__}; it must be an int")
    return int(value.__index__())


def with_method(name: str, value: Any, method: str) -> Any:
    """Return the value itself; raise `TypeError` unless it is `None` or has this method."""
    if value is not None and not callable(getattr(value, method, None)):
        raise TypeError(f"{name} is of type {type(value).__name__} without {method}(); give it that method")
    return value


def limit(name: str, value: object) -> int | None:
    """Return a limit; `None`, 0 and negative numbers mean no limit."""
    number = 0 if value is None else count(name, value, minimum=None)
    return number if number > 0 else None


def defaults(kind: type[Any]) -> dict[str, Any]:
    """Return the default of each option that has one."""
    return {option.name: option.default for option in fields(kind) if option.default is not MISSING}


WORKER_DEFAULTS = defaults(WorkerOptions)
"""The options of a worker, which all have a default."""
