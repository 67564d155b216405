"""What an `Evaluator` was asked for, checked before anything is built."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from swath.evaluate.arena import require_form
from swath.evaluate.jobs import Place, WorkerOptions
from swath.evaluate.predictor import Predicts
from swath.evaluate.request import EvalRequest
from swath.evaluate.setting import SettingRequest
from swath.extras import need
from swath.options import count
from swath.rollout.hosts.sources import is_env_instance

NUM_GPUS = 1
_HERE, _APART = "Collector", "MultiSyncCollector"
_OURS = ("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime")


@dataclass(frozen=True)
class Extras:
    """What is wanted beside the numbers.

    Attributes:
        prefix: of the names in results.
        per_episode: whether results have the returns and lengths of all episodes.
        episodes: how many of the first are filmed.
        max_bytes: frames held at most.
        folder: where films are written; `None` leaves them in the result.
        fps: frames per second of files; `None` for the env's own rate, else 30.

    Raises:
        ValueError: no prefix, a number out of range, or options that need others.
        ImportError: what writes films is not installed.
    """

    prefix: str = "eval"
    per_episode: bool = False
    episodes: int = 0
    max_bytes: int = 2**30
    folder: Path | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not self.prefix:
            raise ValueError(f"log_prefix={self.prefix!r} must be a non-empty string, e.g. 'eval'")
        count("record_video", self.episodes, least=0)
        count("max_video_bytes", self.max_bytes)
        if self.folder is not None and not self.episodes:
            raise ValueError(f"video_dir={str(self.folder)!r} has no meaning without record_video of 1 or more")
        if self.fps is not None and self.folder is None:
            raise ValueError(f"video_fps={self.fps!r} has no meaning without video_dir, where films are written")
        if self.fps is not None and not (isinstance(self.fps, int | float) and 0 < self.fps < math.inf):
            raise ValueError(f"video_fps={self.fps!r} must be a finite number > 0")
        if self.folder is not None:
            need("imageio_ffmpeg", extra="video", why="to write films")

    def check(self, request: EvalRequest) -> None:
        """Whether so many episodes can be filmed.

        Raises:
            ValueError: there are fewer.
        """
        episodes = request.num_trajectories
        if self.episodes > episodes:
            raise ValueError(f"record_video={self.episodes} films more episodes than num_trajectories={episodes}")


def require_workers(options: WorkerOptions) -> None:
    """Check what a backend does not have.

    Raises:
        ValueError: an option that is for another backend.
    """
    if options.place == "thread" and options.number != 1:
        raise ValueError(f"num_workers={options.number} with backend='thread', which has one; use num_envs")
    if options.place == "thread" and options.threads is not None:
        raise ValueError(f"num_threads={options.threads} with backend='thread', which shares those of training")
    if options.place != "ray" and options.placement_timeout_s != WorkerOptions.placement_timeout_s:
        seconds = options.placement_timeout_s
        raise ValueError(f"placement_timeout_s={seconds:g} with backend={options.place!r}: it is for backend='ray'")


def require_playable(request: SettingRequest, place: Place) -> None:
    """Check env and policy.

    Raises:
        ValueError: no policy, or two; something that cannot travel to another process; a number of envs that an
            instance or list cannot have.
        TypeError: the factory is no function, or env or policy is something else.
    """
    policy, factory = request.policy, request.factory
    if policy is None and factory is None:
        raise ValueError("`policy` or `policy_factory` must be provided; got neither")
    if policy is not None and factory is not None:
        raise ValueError("give `policy` or `policy_factory`, not both")
    if factory is not None and not callable(factory):
        raise TypeError(f"policy_factory is of type {type(factory).__name__}; it must be callable")
    if policy is not None and not (callable(policy) or isinstance(policy, Predicts)):
        raise TypeError(f"policy is of type {type(policy).__name__}; it must be callable, or an object with predict")
    if place != "thread":
        _require_travels(request, place)
    require_form(request.env, request.num_envs, request.making)


def _require_travels(request: SettingRequest, place: Place) -> None:
    if request.policy is not None:
        raise ValueError(f"backend={place!r} builds the policy in the worker: it needs policy_factory, not policy")
    entries = request.env if isinstance(request.env, list | tuple) else [request.env]
    instances = [type(entry).__name__ for entry in entries if is_env_instance(entry)]
    if instances:
        got = f"it needs an id or a callable, got an instance of {instances[0]}"
        raise ValueError(f"backend={place!r} builds the env in the worker: {got}")


def is_creator(env: Any) -> bool:
    """Whether this is TorchRL's maker of envs with a common state; torchrl is not imported for it."""
    creator = getattr(sys.modules.get("torchrl.envs"), "EnvCreator", None)
    return creator is not None and isinstance(env, creator)


def place_of(backend: Any, *, apart: bool = False) -> Place:
    """Where workers live: a thread becomes a process if something asks for a process of its own.

    Raises:
        ValueError: an unknown backend.
        RuntimeError: Ray is not installed.
    """
    if backend not in get_args(Place):
        raise ValueError(f"Unknown backend {backend!r}; choose one of {', '.join(map(repr, get_args(Place)))}")
    if backend == "ray" and find_spec("ray") is None:
        raise RuntimeError("Ray is required for backend='ray': pip install \"swath[ray]\"")
    place: Place = "process" if backend == "thread" and apart else backend
    return place


def is_apart(collector_cls: Any) -> bool:
    """Whether this collector class, or its name, stands for a child process.

    Raises:
        ValueError: another class; evaluation has its own runner.
    """
    name = collector_cls
    if isinstance(collector_cls, type) and collector_cls.__module__.partition(".")[0] in ("swath", "torchrl"):
        name = collector_cls.__name__
    if name not in (None, _HERE, _APART):
        raise ValueError(f"collector_cls={collector_cls!r}: evaluation has its own runner; use {_HERE!r}, {_APART!r}")
    return bool(name == _APART)


def resources_of(
    place: Place, workers: int, num_gpus: Any, ray_kwargs: Any, said: str = "ray_kwargs"
) -> dict[str, Any]:
    """What each worker asks of its place, as options of `ray.remote`; nothing elsewhere.

    Args:
        place: where workers live.
        workers: how many.
        num_gpus: as it was given.
        ray_kwargs: other options, as they were given.
        said: what these are called, in messages.

    Raises:
        TypeError: not a mapping, or not a number.
        ValueError: something that this place cannot follow, or that is not the user's to say.
    """
    if isinstance(num_gpus, bool) or not isinstance(num_gpus, int | float):
        raise TypeError(f"num_gpus={num_gpus!r} must be a number")
    if not 0 <= num_gpus < float("inf"):
        raise ValueError(f"num_gpus={num_gpus!r} must be a number ≥ 0")
    if ray_kwargs is not None and not isinstance(ray_kwargs, Mapping):
        raise TypeError(f"{said} is of type {type(ray_kwargs).__name__}; give a dict of options of ray.remote()")
    options = dict(ray_kwargs or {})
    if place != "ray":
        _require_unasked(place, num_gpus, options)
        return {}
    for option in _OURS:
        if option in options:
            raise ValueError(f"{said} has {option!r}, which Swath sets itself; leave it out")
    if "num_gpus" in options:
        raise ValueError(f"{said} has num_gpus={options['num_gpus']!r}; give it as num_gpus of the Evaluator")
    if "name" in options and workers > 1:
        raise ValueError(f"{said} has name={options['name']!r} for num_workers={workers}; a name is for one worker")
    return {**options, "num_gpus": num_gpus}


def _require_unasked(place: Place, num_gpus: float, options: Mapping[str, Any]) -> None:
    for name, given, default in (("num_gpus", num_gpus, NUM_GPUS), ("ray_kwargs", options, {})):
        if given != default:
            raise ValueError(f"{name}={given!r} with backend={place!r}: it is for backend='ray'; leave it out")
