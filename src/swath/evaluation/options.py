"""The arguments of `Evaluator` as one frozen value, which checks itself before anything is built.

The docstring of `Evaluator` describes each argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import cycle
from operator import index
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from tensordict import TensorDict

from swath.errors import warn_of_no_effect
from swath.evaluation.queue import BusyPolicy
from swath.evaluation.result import Floats, Stopped, mean_interval
from swath.extras import import_extra
from swath.keys import keys_of
from swath.options import Restarts, Survival, TrajFormat, count, one_of, positive
from swath.rollout.hosts.parallel import env_processes
from swath.rollout.hosts.sources import Source, is_env_instance, make_env
from swath.rollout.hosts.vector import AsVectorEnv, is_from_stable_baselines
from swath.rollout.policies.calling import ExplorationType, as_device, as_exploration
from swath.weights.schemes import require_schemes

Place = Literal["thread", "process", "ray"]

_MAX_ROUNDS = 10
_IN_PROCESS = "MultiSyncCollector"
_TRAJECTORY_SETTINGS = ("traj_format", "storing_device", "postproc")
_COUNTS = ("num_trajectories", "num_workers", "max_steps", "frames_per_batch", "num_envs", "max_trajectories")
_TIME_LIMITS = ("timeout_s", "step_timeout_s", "start_timeout_s", "placement_timeout_s")
_SET_BY_SWATH = ("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime", "num_gpus")

# Settings of collectors that evaluation fixes, and the values that agree with it.
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "reset_at_each_iter": (True,),
    "reset_when_done": (True,),
    "track_traj_ids": (True,),
    "total_frames": (-1,),
    "return_same_td": (False,),
    "init_random_frames": (None, 0, -1),
}


class SettingError(ValueError, TypeError):
    """A keyword that only collectors take, or that does not exist."""


@dataclass(frozen=True)
class CollectorSettings:
    """The settings in `collector_kwargs`.

    Attributes:
        traj_format: layout of the trajectories for `metrics_fn`: `"padded"` or `"cat"`.
        storing_device: device of the trajectories.
        postproc: transforms them before `metrics_fn`.
        create_env_kwargs: keywords for the id or callable.
        env_device: device of the envs, if they have a choice.
        policy_device: device of the policy.
        compile_policy: whether and how torch compiles the policy.
        cudagraph_policy: whether and how it is captured in a CUDA graph.
        num_threads: torch's threads in each worker; `None` for the default.
        plans: call TensorDict modules, and step TorchRL's envs, without containers where that gives equal bits.

    Raises:
        ValueError: the format is unknown, a number out of range, or a device does not exist.
    """

    traj_format: TrajFormat = "padded"
    storing_device: torch.device | str = "cpu"
    postproc: Callable[[Any], Any] | None = None
    create_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env_device: torch.device | None = None
    policy_device: torch.device | None = None
    compile_policy: bool | Mapping[str, Any] | None = None
    cudagraph_policy: bool | Mapping[str, Any] | None = None
    num_threads: int | None = None
    plans: bool = True

    def __post_init__(self) -> None:
        one_of("traj_format", self.traj_format, TrajFormat)
        if self.num_threads is not None:
            count("num_threads", self.num_threads)
        for name in ("storing_device", "env_device", "policy_device"):
            object.__setattr__(self, name, as_device(name, getattr(self, name)))

    @classmethod
    def from_kwargs(cls, kwargs: Any, *, has_metrics_fn: bool) -> CollectorSettings:
        """Return the settings of a mapping of keywords, in which `None` stands for the default.

        Args:
            kwargs: the mapping, or `None`.
            has_metrics_fn: without a `metrics_fn` some settings have no effect.

        Raises:
            TypeError: the argument is no mapping.
            ValueError: evaluation cannot follow a setting.
            SettingError: a name is no setting of evaluation.
        """
        names, kwargs = [setting.name for setting in fields(cls)], dict(kwargs or {})
        for name, value in kwargs.items():
            if name in _FIXED and value not in _FIXED[name]:
                raise ValueError(f"collector_kwargs: {name}={value!r}, but evaluation has it {_FIXED[name][0]} always")
            if name not in (*names, *_FIXED):
                raise SettingError(f"collector_kwargs has {name!r}; the Evaluator takes {names}, or has it itself")
            if name in _TRAJECTORY_SETTINGS and value is not None and not has_metrics_fn:
                warn_of_no_effect(f"{name} in collector_kwargs", "it is for the trajectories that metrics_fn gets")
        return cls(**{name: kwargs[name] for name in names if kwargs.get(name) is not None})


@dataclass(frozen=True, kw_only=True)
class EvaluatorOptions:
    """The arguments of `Evaluator`.

    Raises:
        ValueError: a number is out of range, options contradict each other, or the backend is unknown.
        TypeError: an argument is of the wrong kind.
        RuntimeError: `backend="ray"` without Ray.
        ImportError: the package that writes films is not installed.
    """

    env: Any = field(kw_only=False)
    policy: Any = field(default=None, kw_only=False)
    policy_factory: Callable[..., Any] | None = None
    num_trajectories: int = 10
    max_steps: int | None = None
    frames_per_batch: int | None = None
    collector_cls: Any = None
    collector_kwargs: Mapping[str, Any] | None = None
    weight_sync_schemes: Mapping[str, Any] | None = None
    log_prefix: str = "eval"
    reward_keys: Any = ("next", "reward")
    done_keys: Any = ("next", "done")
    device: torch.device | str | int | None = None
    exploration_type: ExplorationType | str = ExplorationType.DETERMINISTIC
    metrics_fn: Callable[[Any], Mapping[str, Any]] | None = None
    dump_video: bool = True
    on_result: Callable[[TensorDict], Any] | None = None
    busy_policy: BusyPolicy = "error"
    backend: Place = "thread"
    init_fn: Callable[[], Any] | None = None
    num_gpus: float = 1
    ray_kwargs: Mapping[str, Any] | None = None
    seed: int | None = 0
    num_envs: int | None = None
    num_workers: int = 1
    env_processes: int | None = None
    step_timeout_s: float = 300.0
    until_ci_halfwidth: float | None = None
    max_trajectories: int | None = None
    record_video: int = 0
    video_dir: str | Path | None = None
    video_fps: float | None = None
    max_video_bytes: int = 2**30
    per_episode: bool = False
    keep_best: str | Path | None = None
    retries: int = 1
    keep_float64: bool = False
    timeout_s: float = 3600.0
    start_timeout_s: float = 300.0
    placement_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("metrics_fn", "on_result", "init_fn", "policy_factory"):
            if not callable(value := getattr(self, name)) and value is not None:
                raise TypeError(f"{name} is of type {type(value).__name__}; it must be callable, or None")
        object.__setattr__(self, "seed", None if self.seed is None else index(self.seed))
        keys_of("reward_keys", self.reward_keys)
        keys_of("done_keys", self.done_keys)
        self._check(count, *_COUNTS, "max_video_bytes")
        self._check(partial(count, minimum=0), "retries", "record_video")
        self._check(positive, *_TIME_LIMITS, "until_ci_halfwidth", "video_fps")
        self._check_together()
        _ = self.policy_device, self.exploration
        if self.place == "thread" and self.init_fn is not None:
            warn_of_no_effect("init_fn", "with backend='thread' there is no new process; it is not called")
        if self.video_dir is not None:
            import_extra("imageio_ffmpeg", extra="video", purpose="to write films")

    def _check(self, function: Callable[[str, Any], object], *names: str) -> None:
        """Check the values of options by a function; options whose default is `None` may be `None`."""
        for name in names:
            if (value := getattr(self, name)) is not None or getattr(type(self), name) is not None:
                function(name, value)

    def _check_together(self) -> None:
        """Refuse options that contradict each other."""
        place, threads, n = self.place, self.settings.num_threads, self.num_trajectories
        films, folder, fps, halfwidth = self.record_video, self.video_dir, self.video_fps, self.until_ci_halfwidth
        maximum, workers, in_thread = self.max_trajectories, self.num_workers, place == "thread"
        has_policy, has_factory = self.policy is not None, self.policy_factory is not None
        for is_wrong, message in (
            (not self.log_prefix, "log_prefix='' must be a non-empty string"),
            (halfwidth is None and maximum is not None, f"max_trajectories={maximum} needs until_ci_halfwidth"),
            (halfwidth is not None and n < 2, f"until_ci_halfwidth={halfwidth} needs num_trajectories of 2 or more"),
            (maximum is not None and maximum < n, f"max_trajectories={maximum} must be at least num_trajectories={n}"),
            (films > n, f"record_video={films} films more episodes than num_trajectories={n}"),
            (folder is not None and not films, f"video_dir={str(folder)!r} needs record_video of 1 or more"),
            (fps is not None and folder is None, f"video_fps={fps!r} needs video_dir, where films are written"),
            (not (has_policy or has_factory), "`policy` or `policy_factory` must be provided; got neither"),
            (has_policy and has_factory, "give `policy` or `policy_factory`, not both"),
            (has_policy and not in_thread, f"backend={place!r} builds the policy in the worker; give policy_factory"),
            (not in_thread and self.has_instances, f"backend={place!r} builds the env in the worker; give a callable"),
            (in_thread and workers != 1, f"num_workers={workers} with backend='thread', which has one; use num_envs"),
            (in_thread and threads is not None, f"num_threads={threads} with backend='thread'; leave it out"),
            ("name" in self.resources and workers > 1, f"num_workers={workers} with one name in ray_kwargs"),
        ):
            if is_wrong:
                raise ValueError(message)
        for name in () if place == "ray" else ("num_gpus", "ray_kwargs", "placement_timeout_s"):
            if (value := getattr(self, name)) not in (getattr(type(self), name), {}):
                raise ValueError(f"{name}={value!r} with backend={place!r}: it is for backend='ray'; leave it out")

    def stop_reason(self, returns: Floats, seed: int | None) -> Stopped | None:
        """Return the reason to stop after these episodes; `None`: play another round.

        This rule favours intervals that are too narrow by chance: they contain the true mean somewhat less often than
        their level. An interval of NaN is never narrow enough.

        Args:
            returns: returns of all episodes so far.
            seed: root of the seed of the interval.
        """
        if self.until_ci_halfwidth is None:
            return "fixed"
        low, high = mean_interval(returns, seed)
        if (high - low) / 2.0 <= self.until_ci_halfwidth:
            return "ci"
        maximum = self.max_trajectories or _MAX_ROUNDS * self.num_trajectories
        return "max" if len(returns) + self.num_trajectories > maximum else None

    @cached_property
    def settings(self) -> CollectorSettings:
        """Return the settings in `collector_kwargs`."""
        return CollectorSettings.from_kwargs(self.collector_kwargs, has_metrics_fn=self.metrics_fn is not None)

    @cached_property
    def schemes(self) -> dict[str, Any] | None:
        """Return the declared schemes by model id; `None` if weights of any model may be sent."""
        schemes = self.weight_sync_schemes
        return None if schemes is None else require_schemes("weight_sync_schemes", schemes)

    @cached_property
    def place(self) -> Place:
        """Return where workers live: in a process instead of a thread if another option needs that."""
        kind = getattr(self.collector_cls, "__name__", self.collector_cls)
        if kind not in (None, "Collector", _IN_PROCESS):
            names = f"'Collector' or {_IN_PROCESS!r}"
            raise ValueError(f"collector_cls={kind!r}: evaluation has its own runner; use {names}")
        if self.backend not in get_args(Place):
            raise ValueError(f"Unknown backend {self.backend!r}; choose one of {get_args(Place)}")
        if self.backend == "ray" and find_spec("ray") is None:
            raise RuntimeError("Ray is required for backend='ray': pip install \"swath[ray]\"")
        needs_process = kind == _IN_PROCESS or self.schemes is not None
        return "process" if self.backend == "thread" and needs_process else self.backend

    @property
    def policy_device(self) -> torch.device | None:
        """Return the device of the policy; `None` leaves it where it is."""
        device, other = as_device("device", self.device), self.settings.policy_device
        if device is not None and other is not None and device != other:
            raise ValueError(f"policy_device={str(other)!r} in collector_kwargs, but device={str(device)!r}; give one")
        return device or other

    @property
    def exploration(self) -> ExplorationType:
        """Return how the policy picks actions."""
        return as_exploration(self.exploration_type)

    @property
    def has_instances(self) -> bool:
        """Tell whether `env` has env instances, which cannot be built again."""
        source = self.source()
        return source.is_instance or source.owned_by_user

    def source(self) -> Source:
        """Return the source of a worker's envs, without building any; of a list of k entries slot g runs entry g mod k.

        Raises:
            TypeError: the env is of an unknown kind.
            ValueError: a list cannot have this number of slots, or there are keywords for an instance.
        """
        env, kwargs = self.env, self.settings.create_env_kwargs
        processes = env_processes(self.env_processes, self.step_timeout_s, self.init_fn)
        common: dict[str, Any] = {"keep_float64": self.keep_float64, "processes": processes}

        def source_of(entry: Any, copies: int | None = None) -> Source:
            render = {"render_mode": "rgb_array"} if self.record_video and isinstance(entry, str) else {}
            return Source(entry, {**render, **kwargs}, copies, "num_envs", **common)

        if is_from_stable_baselines(type(env), "VecEnv"):
            env = AsVectorEnv(env)
        if not isinstance(env, list | tuple):
            return source_of(env, None if is_env_instance(env) else self.num_envs)
        if processes is not None:
            raise ValueError(
                f"env_processes={processes.number} for a list of envs; leave it out, or pass one env source"
            )
        sources, n = [*map(source_of, env)], len(env)
        instances = {source.is_instance for source in sources}
        if len(instances) != 1:
            raise ValueError("env is an empty list, or one of instances and of things to build; name envs of one kind")
        size = self.num_envs or n
        if size % n or (True in instances and size != n):
            raise ValueError(f"num_envs={size} for a list of {n} envs; take a multiple of {n}, or {n} for instances")
        turns = cycle(sources)

        def make() -> Any:
            source = next(turns)
            return source.env if source.is_instance else make_env(source)

        return Source(make, {}, size, "num_envs", owned_by_user=True in instances, keep_float64=self.keep_float64)

    def for_workers(self, policy: Any) -> EvaluatorOptions:
        """Return the options that travel to workers, with this policy and without the options of the driver."""
        kwargs = self.collector_kwargs or {}
        kwargs = {name: value for name, value in kwargs.items() if name not in _TRAJECTORY_SETTINGS}
        called = ("collector_cls", "weight_sync_schemes", "metrics_fn", "on_result", "ray_kwargs")
        unset: dict[str, Any] = dict.fromkeys((*called, "keep_best", "video_dir", "video_fps"))
        if self.env_processes is None:
            unset["init_fn"] = None
        return replace(self, policy=policy, backend=self.place, collector_kwargs=kwargs, **unset)

    @cached_property
    def resources(self) -> dict[str, Any]:
        """Return the options of `ray.remote` for a worker; empty on other backends."""
        options = dict(self.ray_kwargs or {})
        if not 0 <= self.num_gpus < math.inf:
            raise ValueError(f"num_gpus={self.num_gpus!r} must be a number ≥ 0")
        if conflicts := [name for name in _SET_BY_SWATH if name in options]:
            raise ValueError(f"ray_kwargs has {conflicts}, which Swath sets; num_gpus is an argument of the evaluator")
        return {**options, "num_gpus": self.num_gpus} if self.place == "ray" else {}

    @property
    def survival(self) -> Survival:
        """Return how the fleet handles deaths within one evaluation."""
        return Survival(
            Restarts(max_per_worker=self.retries, backoff_s=0.0, forgive_after_s=None),
            fragment_timeout_s=None,
            placement_timeout_s=self.placement_timeout_s,
            start_timeout_s=self.start_timeout_s,
            waits_for_room=False,
        )
