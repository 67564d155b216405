"""The arguments of `Evaluator` as one frozen value, which checks itself before anything is built.

What each means stands in the docstring of `Evaluator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
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
from swath.extras import need
from swath.keys import keys_of
from swath.options import Restarts, Survival, TrajFormat, count, one_of
from swath.rollout.hosts.sources import Source, is_env_instance, make_env
from swath.rollout.hosts.vector import is_from_stable_baselines
from swath.rollout.policies.calling import ExplorationType, as_device, as_exploration
from swath.weights.schemes import require_schemes

Place = Literal["thread", "process", "ray"]

_ROUNDS_AT_MOST = 10
_APART = "MultiSyncCollector"
_OF_TRAJECTORIES = ("traj_format", "storing_device", "postproc")
_OURS = ("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime")


# What holds in any case, and the values that say so.
_ALWAYS: Mapping[str, tuple[Any, ...]] = {
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
    """What `collector_kwargs` ask for.

    Attributes:
        traj_format: how trajectories for `metrics_fn` are laid out: `"padded"` or `"cat"`.
        storing_device: where they are.
        postproc: what is made of them before.
        create_env_kwargs: keywords for the id or callable.
        env_device: where envs run, if that can be chosen.
        policy_device: where the policy runs.
        compile_policy: whether and how torch compiles the policy.
        cudagraph_policy: whether and how it is captured in a CUDA graph.
        num_threads: of torch in each worker; `None` for the default.

    Raises:
        ValueError: an unknown format, a number out of range, or no device.
        TypeError: keywords that are none.
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

    def __post_init__(self) -> None:
        one_of("traj_format", self.traj_format, TrajFormat)
        if self.num_threads is not None:
            count("num_threads", self.num_threads)
        for name in ("storing_device", "env_device", "policy_device"):
            object.__setattr__(self, name, as_device(name, getattr(self, name)))

    @classmethod
    def of(cls, given: Any, *, measured: bool) -> CollectorSettings:
        """From a mapping of keywords; `None` stands for the default of each.

        Args:
            given: the mapping, or `None`.
            measured: whether there is a `metrics_fn`, without which some of them would do nothing.

        Raises:
            TypeError: not a mapping.
            ValueError: a setting that evaluation cannot follow.
            SettingError: a name that means nothing here.
        """
        known, given = [each.name for each in fields(cls)], dict(given or {})
        for name, value in given.items():
            if name in _ALWAYS and value not in _ALWAYS[name]:
                raise ValueError(f"collector_kwargs: {name}={value!r}, but evaluation has it {_ALWAYS[name][0]} always")
            if name not in (*known, *_ALWAYS):
                raise SettingError(f"collector_kwargs has {name!r}; the Evaluator takes {known}, or has it itself")
            if name in _OF_TRAJECTORIES and value is not None and not measured:
                warn_of_no_effect(f"{name} in collector_kwargs", "it is for the trajectories that metrics_fn gets")
        return cls(**{name: given[name] for name in known if given.get(name) is not None})


@dataclass(frozen=True, kw_only=True)
class EvaluatorOptions:
    """What `Evaluator` takes.

    Raises:
        ValueError: a number out of range, options that contradict each other, an unknown backend.
        TypeError: something of the wrong kind.
        RuntimeError: `backend="ray"` without Ray.
        ImportError: what writes films is not installed.
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
            if not callable(given := getattr(self, name)) and given is not None:
                raise TypeError(f"{name} is of type {type(given).__name__}; it must be callable, or None")
        object.__setattr__(self, "seed", None if self.seed is None else index(self.seed))
        as_exploration(self.exploration_type)
        keys_of("reward_keys", self.reward_keys)
        keys_of("done_keys", self.done_keys)
        least = {"num_trajectories": 1, "num_workers": 1, "max_video_bytes": 1, "retries": 0, "record_video": 0}
        for name in (*least, "max_steps", "frames_per_batch", "num_envs", "max_trajectories"):
            if (given := getattr(self, name)) is not None or name in least:
                count(name, given, minimum=least.get(name, 1))
        for name in ("timeout_s", "start_timeout_s", "placement_timeout_s", "until_ci_halfwidth", "video_fps"):
            given = getattr(self, name)
            number = isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < math.inf
            if not number and (given is not None or name.endswith("_s")):
                raise ValueError(f"{name}={given!r} must be a finite number > 0")
        self._check_together()
        _ = self.policy_device
        if self.place == "thread" and self.init_fn is not None:
            warn_of_no_effect("init_fn", "with backend='thread' there is no new process; it is not called")
        if self.video_dir is not None:
            need("imageio_ffmpeg", extra="video", why="to write films")

    def _check_together(self) -> None:
        place, policy, threads, n = self.place, self.policy, self.settings.num_threads, self.num_trajectories
        films, folder, fps, most = self.record_video, self.video_dir, self.video_fps, self.max_trajectories
        halfwidth, resources = self.until_ci_halfwidth, self.resources
        given, apart, workers, built = policy is not None, place != "thread", self.num_workers, self.policy_factory
        for wrong, why in (
            (not self.log_prefix, "log_prefix='' must be a non-empty string"),
            (halfwidth is None and most is not None, f"max_trajectories={most} needs until_ci_halfwidth"),
            (halfwidth is not None and n < 2, f"until_ci_halfwidth={halfwidth} needs num_trajectories of 2 or more"),
            (most is not None and most < n, f"max_trajectories={most} must be at least {n}, as num_trajectories"),
            (films > n, f"record_video={films} films more episodes than num_trajectories={n}"),
            (folder is not None and not films, f"video_dir={str(folder)!r} needs record_video of 1 or more"),
            (fps is not None and folder is None, f"video_fps={fps!r} needs video_dir, where films are written"),
            (not given and built is None, "`policy` or `policy_factory` must be provided; got neither"),
            (given and built is not None, "give `policy` or `policy_factory`, not both"),
            (given and apart, f"backend={place!r} builds the policy in the worker; give it policy_factory"),
            (apart and self.lent, f"backend={place!r} builds the env in the worker; give an id or a callable"),
            (not apart and workers != 1, f"num_workers={workers} with backend='thread', which has one; use num_envs"),
            (not apart and threads is not None, f"num_threads={threads} with backend='thread', which has training's"),
            ("name" in resources and workers > 1, f"num_workers={workers} with one name in ray_kwargs"),
        ):
            if wrong:
                raise ValueError(why)
        for name in () if place == "ray" else ("num_gpus", "ray_kwargs", "placement_timeout_s"):
            if (value := getattr(self, name)) not in (getattr(type(self), name), {}):
                raise ValueError(f"{name}={value!r} with backend={place!r}: it is for backend='ray'; leave it out")

    def verdict(self, returns: Floats, root: int | None) -> Stopped | None:
        """Why to stop after episodes with these returns; `None`: play another round.

        Stopping where the interval happens to be narrow favours intervals that are too narrow: those hold the true mean
        somewhat less often than they say. An interval of NaN is never narrow enough.

        Args:
            returns: of all episodes so far.
            root: of the seed of the interval.
        """
        if self.until_ci_halfwidth is None:
            return "fixed"
        low, high = mean_interval(returns, root)
        if (high - low) / 2.0 <= self.until_ci_halfwidth:
            return "ci"
        most = self.max_trajectories or _ROUNDS_AT_MOST * self.num_trajectories
        return "max" if len(returns) + self.num_trajectories > most else None

    @cached_property
    def settings(self) -> CollectorSettings:
        """What `collector_kwargs` ask for."""
        return CollectorSettings.of(self.collector_kwargs, measured=self.metrics_fn is not None)

    @cached_property
    def schemes(self) -> dict[str, Any] | None:
        """Those declared, by model id; `None` if the weights of any model may be sent."""
        declared = self.weight_sync_schemes
        return None if declared is None else require_schemes("weight_sync_schemes", declared)

    @cached_property
    def place(self) -> Place:
        """Where workers live: a thread becomes a process if something asks for a process of its own."""
        kind = getattr(self.collector_cls, "__name__", self.collector_cls)
        if kind not in (None, "Collector", _APART):
            raise ValueError(f"collector_cls={kind!r}: evaluation has its own runner; use 'Collector' or {_APART!r}")
        if self.backend not in get_args(Place):
            raise ValueError(f"Unknown backend {self.backend!r}; choose one of {get_args(Place)}")
        if self.backend == "ray" and find_spec("ray") is None:
            raise RuntimeError("Ray is required for backend='ray': pip install \"swath[ray]\"")
        apart = kind == _APART or self.schemes is not None
        return "process" if self.backend == "thread" and apart else self.backend

    @property
    def policy_device(self) -> torch.device | None:
        """Where the policy runs; `None` leaves it where it is."""
        asked, other = as_device("device", self.device), self.settings.policy_device
        if asked is not None and other is not None and asked != other:
            raise ValueError(f"policy_device={str(other)!r} in collector_kwargs, but device={str(asked)!r}; give one")
        return asked or other

    @property
    def lent(self) -> bool:
        """Whether envs were handed in, so that there are no others."""
        source = self.source()
        return source is None or source.is_instance or source.owned_by_user

    def source(self) -> Source | None:
        """What the envs of a worker are built from; of a list of k entries slot g runs entry g mod k.

        Nothing is built yet. `None` for a `VecEnv` of Stable-Baselines3.

        Raises:
            TypeError: no form of an env.
            ValueError: a number of slots that a list cannot have, or keywords for an instance.
        """
        env, kwargs = self.env, self.settings.create_env_kwargs

        def of(entry: Any, copies: int | None = None) -> Source:
            more = {"render_mode": "rgb_array"} if self.record_video and isinstance(entry, str) else {}
            return Source(entry, {**more, **kwargs}, copies, "num_envs", keep_float64=self.keep_float64)

        if is_from_stable_baselines(type(env), "VecEnv"):
            return None
        if not isinstance(env, list | tuple):
            return of(env, None if is_env_instance(env) else self.num_envs)
        sources, n = [*map(of, env)], len(env)
        lends = {each.is_instance for each in sources}
        if len(lends) != 1:
            raise ValueError("env is an empty list, or one of instances and of things to build; name envs of one kind")
        size = self.num_envs or n
        if size % n or (True in lends and size != n):
            raise ValueError(f"num_envs={size} for a list of {n} envs; take a multiple of {n}, or {n} for instances")
        turns = cycle(sources)

        def make() -> Any:
            source = next(turns)
            return source.env if source.is_instance else make_env(source)

        return Source(make, {}, size, "num_envs", owned_by_user=True in lends, keep_float64=self.keep_float64)

    def for_workers(self, policy: Any) -> EvaluatorOptions:
        """What workers get, with this policy: it travels, and has nothing that is called here."""
        given = self.collector_kwargs or {}
        kwargs = {name: value for name, value in given.items() if name not in _OF_TRAJECTORIES}
        here = ("collector_cls", "weight_sync_schemes", "metrics_fn", "on_result", "init_fn", "ray_kwargs")
        none: dict[str, Any] = dict.fromkeys((*here, "keep_best", "video_dir", "video_fps"))
        return replace(self, policy=policy, backend=self.place, collector_kwargs=kwargs, **none)

    @cached_property
    def resources(self) -> dict[str, Any]:
        """What an actor asks for, as options of `ray.remote`; nothing elsewhere."""
        given = {} if self.ray_kwargs is None else {**self.ray_kwargs}
        if not 0 <= self.num_gpus < math.inf:
            raise ValueError(f"num_gpus={self.num_gpus!r} must be a number ≥ 0")
        if taken := [option for option in (*_OURS, "num_gpus") if option in given]:
            raise ValueError(f"ray_kwargs has {taken}, which Swath sets itself; num_gpus is an argument of its own")
        return {**given, "num_gpus": self.num_gpus} if self.place == "ray" else {}

    @property
    def survival(self) -> Survival:
        """What the fleet does about deaths within one evaluation."""
        return Survival(
            Restarts(max_per_worker=self.retries, backoff_s=0.0, forgive_after_s=None),
            fragment_timeout_s=None,
            placement_timeout_s=self.placement_timeout_s,
            start_timeout_s=self.start_timeout_s,
            waits_for_room=False,
        )
