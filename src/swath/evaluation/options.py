"""The arguments of `Evaluator` as one frozen value, which checks itself before anything is built.

What each means stands in the docstring of `Evaluator`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from tensordict import TensorDict

from swath.errors import warn_of_no_effect
from swath.evaluation.acting import Predicts
from swath.evaluation.collector_settings import CollectorSettings
from swath.evaluation.queue import BusyPolicy
from swath.evaluation.request import Conditions, EvalRequest, require_positive
from swath.evaluation.setting import SettingRequest
from swath.extras import need
from swath.options import Restarts, Survival, count
from swath.rollout.hosts.sources import is_env_instance
from swath.seeds import fresh_root
from swath.weights.schemes import require_schemes

Place = Literal["thread", "process", "ray"]

NUM_GPUS = 1
_PLACEMENT_S = 60.0
_REPORT_EVERY = 1000
_HERE, _APART = "Collector", "MultiSyncCollector"
_OURS = ("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime")


@dataclass(frozen=True, kw_only=True)
class EvaluatorOptions(Conditions):
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
    frames_per_batch: int | None = None
    collector_cls: Any = None
    collector_kwargs: Mapping[str, Any] | None = None
    weight_sync_schemes: Mapping[str, Any] | None = None
    log_prefix: str = "eval"
    device: torch.device | str | int | None = None
    metrics_fn: Callable[[Any], Mapping[str, Any]] | None = None
    dump_video: bool = True
    on_result: Callable[[TensorDict], Any] | None = None
    busy_policy: BusyPolicy = "error"
    backend: Place = "thread"
    init_fn: Callable[[], Any] | None = None
    num_gpus: float = NUM_GPUS
    ray_kwargs: Mapping[str, Any] | None = None
    num_envs: int | None = None
    num_workers: int = 1
    record_video: int = 0
    video_dir: str | Path | None = None
    video_fps: float | None = None
    max_video_bytes: int = 2**30
    per_episode: bool = False
    keep_best: str | Path | None = None
    retries: int = 1
    start_timeout_s: float = 300.0
    placement_timeout_s: float = _PLACEMENT_S

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("metrics_fn", "on_result", "init_fn", "policy_factory"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise TypeError(f"{name} is of type {type(given).__name__}; it must be callable, or None")
        for name in ("num_workers", "max_video_bytes"):
            count(name, getattr(self, name))
        for name in ("retries", "record_video"):
            count(name, getattr(self, name), least=0)
        if self.frames_per_batch is not None:
            count("frames_per_batch", self.frames_per_batch)
        require_positive("start_timeout_s", self.start_timeout_s)
        require_positive("placement_timeout_s", self.placement_timeout_s)
        self._check_results()
        self._check_place()
        self._check_played()
        if self.place == "thread" and self.init_fn is not None:
            warn_of_no_effect("init_fn", "with backend='thread' there is no new process; it is not called")

    def _check_results(self) -> None:
        if not isinstance(self.log_prefix, str) or not self.log_prefix:
            raise ValueError(f"log_prefix={self.log_prefix!r} must be a non-empty string, e.g. 'eval'")
        films, episodes = self.record_video, self.num_trajectories
        if films > episodes:
            raise ValueError(f"record_video={films} films more episodes than num_trajectories={episodes}")
        if self.video_dir is not None and not films:
            raise ValueError(f"video_dir={str(self.video_dir)!r} has no meaning without record_video of 1 or more")
        if self.video_fps is not None and self.video_dir is None:
            raise ValueError(f"video_fps={self.video_fps!r} has no meaning without video_dir, where films are written")
        if self.video_fps is not None:
            require_positive("video_fps", self.video_fps, "number")
        if self.video_dir is not None:
            need("imageio_ffmpeg", extra="video", why="to write films")

    def _check_place(self) -> None:
        place, threads, seconds = self.place, self.settings.num_threads, self.placement_timeout_s
        if place == "thread" and self.num_workers != 1:
            raise ValueError(f"num_workers={self.num_workers} with backend='thread', which has one; use num_envs")
        if place == "thread" and threads is not None:
            raise ValueError(f"num_threads={threads} with backend='thread', which shares those of training")
        if place != "ray" and seconds != _PLACEMENT_S:
            raise ValueError(f"placement_timeout_s={seconds:g} with backend={place!r}: it is for backend='ray'")
        resources = resources_of(self.num_gpus, self.ray_kwargs)
        if place != "ray":
            for name, default in (("num_gpus", NUM_GPUS), ("ray_kwargs", None)):
                if (given := getattr(self, name)) != default and given != {}:
                    raise ValueError(f"{name}={given!r} with backend={place!r}: it is for backend='ray'; leave it out")
        elif "name" in resources and self.num_workers > 1:
            text = f"ray_kwargs has name={resources['name']!r} for num_workers={self.num_workers}"
            raise ValueError(f"{text}; a name is for one worker")

    def _check_played(self) -> None:
        policy, place = self.policy, self.place
        if policy is None and self.policy_factory is None:
            raise ValueError("`policy` or `policy_factory` must be provided; got neither")
        if policy is not None and self.policy_factory is not None:
            raise ValueError("give `policy` or `policy_factory`, not both")
        if policy is not None and not (callable(policy) or isinstance(policy, Predicts)):
            raise TypeError(
                f"policy is of type {type(policy).__name__}; it must be callable, or an object with predict"
            )
        if place != "thread" and policy is not None:
            raise ValueError(f"backend={place!r} builds the policy in the worker: it needs policy_factory, not policy")
        instances = [type(entry).__name__ for entry in self.setting.entries if is_env_instance(entry)]
        if place != "thread" and instances:
            got = f"it needs an id or a callable, got an instance of {instances[0]}"
            raise ValueError(f"backend={place!r} builds the env in the worker: {got}")
        self.setting.source()

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
        kind = self.collector_cls
        if isinstance(kind, type) and kind.__module__.partition(".")[0] in ("swath", "torchrl"):
            kind = kind.__name__
        if kind not in (None, _HERE, _APART):
            text = f"collector_cls={self.collector_cls!r}: evaluation has its own runner"
            raise ValueError(f"{text}; use {_HERE!r}, {_APART!r}")
        if self.backend not in get_args(Place):
            choices = ", ".join(map(repr, get_args(Place)))
            raise ValueError(f"Unknown backend {self.backend!r}; choose one of {choices}")
        if self.backend == "ray":
            require_ray()
        apart = kind == _APART or self.schemes is not None
        return "process" if self.backend == "thread" and apart else self.backend

    @cached_property
    def setting(self) -> SettingRequest:
        """What each worker builds."""
        settings = self.settings
        return SettingRequest(
            self.env,
            self.num_envs,
            self.policy,
            self.policy_factory,
            settings.device(self.device),
            fresh_root() if self.seed is None else self.seed,  # products of factories are alike in all workers
            self.place != "thread",
            settings.create_env_kwargs,
            self.record_video > 0,
            settings.env_device,
            settings.compile_policy,
            settings.cudagraph_policy,
        )

    @property
    def request(self) -> EvalRequest:
        """What all evaluations have in common."""
        return EvalRequest(
            **{one.name: getattr(self, one.name) for one in fields(Conditions)},
            film=self.record_video,
            film_bytes=self.max_video_bytes // self.num_workers,
            report_every=self.frames_per_batch or self.max_steps or _REPORT_EVERY,
            record=self.metrics_fn is not None,
        )

    @property
    def resources(self) -> dict[str, Any]:
        """What each worker asks of its place."""
        return resources_of(self.num_gpus, self.ray_kwargs) if self.place == "ray" else {}

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

    @property
    def is_shared(self) -> bool:
        """Whether the env is TorchRL's maker of envs with a common state; torchrl is not imported for it."""
        creator = getattr(sys.modules.get("torchrl.envs"), "EnvCreator", None)
        return creator is not None and isinstance(self.env, creator)


def require_ray() -> None:
    """Raise `RuntimeError` unless Ray is installed."""
    if find_spec("ray") is None:
        raise RuntimeError("Ray is required for backend='ray': pip install \"swath[ray]\"")


def resources_of(num_gpus: Any, ray_kwargs: Any, said: str = "ray_kwargs") -> dict[str, Any]:
    """What an actor asks for, as options of `ray.remote`.

    Args:
        num_gpus: as it was given.
        ray_kwargs: other options, as they were given.
        said: what these are called, in messages.

    Raises:
        TypeError: not a mapping, or not a number.
        ValueError: a number out of range, or something that is not the user's to say.
    """
    if isinstance(num_gpus, bool) or not isinstance(num_gpus, int | float):
        raise TypeError(f"num_gpus={num_gpus!r} must be a number")
    if not 0 <= num_gpus < math.inf:
        raise ValueError(f"num_gpus={num_gpus!r} must be a number ≥ 0")
    if ray_kwargs is not None and not isinstance(ray_kwargs, Mapping):
        raise TypeError(f"{said} is of type {type(ray_kwargs).__name__}; give a dict of options of ray.remote()")
    options = dict(ray_kwargs or {})
    for option in _OURS:
        if option in options:
            raise ValueError(f"{said} has {option!r}, which Swath sets itself; leave it out")
    if "num_gpus" in options:
        raise ValueError(f"{said} has num_gpus={options['num_gpus']!r}; give it as num_gpus of the Evaluator")
    return {**options, "num_gpus": num_gpus}
