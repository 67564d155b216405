"""The arguments of `Evaluator` as one frozen value, which checks itself before anything is built.

What each means stands in the docstring of `Evaluator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from operator import index
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from tensordict import TensorDict

from swath.errors import warn_of_no_effect
from swath.evaluation.acting import Predicts
from swath.evaluation.collector_settings import OF_TRAJECTORIES, CollectorSettings
from swath.evaluation.env_parts import source_of
from swath.evaluation.queue import BusyPolicy
from swath.evaluation.statistics import Floats, mean_interval
from swath.extras import need
from swath.keys import keys_of
from swath.options import Restarts, Survival, count
from swath.rollout.hosts.sources import Source, is_env_instance
from swath.rollout.hosts.vec_env import is_vec_env
from swath.rollout.policies.calling import ExplorationType, as_exploration_type
from swath.weights.schemes import require_schemes

Place = Literal["thread", "process", "ray"]
Stopped: TypeAlias = Literal["fixed", "ci", "max"]

NUM_GPUS = 1
_PLACEMENT_S = 60.0
_ROUNDS_AT_MOST = 10
_HERE, _APART = "Collector", "MultiSyncCollector"
_OURS = ("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime")


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
    num_gpus: float = NUM_GPUS
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
    timeout_s: float = 3600.0
    start_timeout_s: float = 300.0
    placement_timeout_s: float = _PLACEMENT_S

    def __post_init__(self) -> None:
        for name in ("metrics_fn", "on_result", "init_fn", "policy_factory"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise TypeError(f"{name} is of type {type(given).__name__}; it must be callable, or None")
        least = {"num_trajectories": 1, "num_workers": 1, "max_video_bytes": 1, "retries": 0, "record_video": 0}
        for name in (*least, "max_steps", "frames_per_batch"):
            if (given := getattr(self, name)) is not None or name in least:
                count(name, given, least=least.get(name, 1))
        for name in ("timeout_s", "start_timeout_s", "placement_timeout_s"):
            _require_positive(name, getattr(self, name))
        if self.seed is not None:
            object.__setattr__(self, "seed", _integer("seed", self.seed, ", or None to seed nothing"))
        as_exploration_type(self.exploration_type)
        keys_of("reward_keys", self.reward_keys)
        keys_of("done_keys", self.done_keys)
        self._check_rounds()
        self._check_results()
        self._check_place()
        self._check_played()

    def _check_rounds(self) -> None:
        halfwidth, most = self.until_ci_halfwidth, self.max_trajectories
        if halfwidth is None and most is not None:
            raise ValueError(f"max_trajectories={most} needs until_ci_halfwidth, which is None")
        if halfwidth is not None:
            _require_positive("until_ci_halfwidth", halfwidth, "number")
            if self.num_trajectories < 2:
                raise ValueError(f"until_ci_halfwidth={halfwidth} needs num_trajectories of 2 or more, got 1")
            if most is not None:
                count("max_trajectories", most, least=self.num_trajectories)

    def _check_results(self) -> None:
        if not isinstance(self.log_prefix, str) or not self.log_prefix:
            raise ValueError(f"log_prefix={self.log_prefix!r} must be a non-empty string, e.g. 'eval'")
        films, folder, fps = self.record_video, self.video_dir, self.video_fps
        if films > self.num_trajectories:
            raise ValueError(f"record_video={films} films more episodes than num_trajectories={self.num_trajectories}")
        if folder is not None and not films:
            raise ValueError(f"video_dir={str(folder)!r} has no meaning without record_video of 1 or more")
        if fps is not None and folder is None:
            raise ValueError(f"video_fps={fps!r} has no meaning without video_dir, where films are written")
        if fps is not None:
            _require_positive("video_fps", fps, "number")
        if folder is not None:
            need("imageio_ffmpeg", extra="video", why="to write films")

    def _check_place(self) -> None:
        place, threads = self.place, self.settings.num_threads
        if place == "thread" and self.num_workers != 1:
            raise ValueError(f"num_workers={self.num_workers} with backend='thread', which has one; use num_envs")
        if place == "thread" and threads is not None:
            raise ValueError(f"num_threads={threads} with backend='thread', which shares those of training")
        if place == "thread" and self.init_fn is not None:
            warn_of_no_effect("init_fn", "with backend='thread' there is no new process; it is not called")
        resources = resources_of(self.num_gpus, self.ray_kwargs)
        if place != "ray":
            for name, default in (("num_gpus", NUM_GPUS), ("ray_kwargs", None), ("placement_timeout_s", _PLACEMENT_S)):
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
            kind = type(policy).__name__
            raise TypeError(f"policy is of type {kind}; it must be callable, or an object with predict")
        if place != "thread" and policy is not None:
            raise ValueError(f"backend={place!r} builds the policy in the worker: it needs policy_factory, not policy")
        if place != "thread" and self.lent:
            got = f"it needs an id or a callable, got an instance: {self.env}"
            raise ValueError(f"backend={place!r} builds the env in the worker: {got}")
        _ = self.policy_device
        self.source()

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

    @property
    def policy_device(self) -> torch.device | None:
        """Where the policy runs; `None` leaves it where it is."""
        return self.settings.device(self.device)

    @property
    def lent(self) -> bool:
        """Whether envs were handed in, so that there are no others."""
        entries = self.env if isinstance(self.env, list | tuple) else [self.env]
        return any(is_env_instance(entry) or is_vec_env(entry) for entry in entries)

    def source(self) -> Source | None:
        """What the envs of a worker are built from; see `source_of`."""
        kwargs = self.settings.create_env_kwargs
        return source_of(self.env, self.num_envs, kwargs, rendered=self.record_video > 0)

    def for_workers(self, policy: Any) -> EvaluatorOptions:
        """What workers get, with this policy: it travels, and has nothing that is called here."""
        given = self.collector_kwargs or {}
        kwargs = {name: value for name, value in given.items() if name not in OF_TRAJECTORIES}
        here = ("collector_cls", "weight_sync_schemes", "metrics_fn", "on_result", "init_fn", "ray_kwargs")
        none: dict[str, Any] = dict.fromkeys((*here, "keep_best", "video_dir", "video_fps"))
        return replace(self, policy=policy, backend=self.place, collector_kwargs=kwargs, **none)

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


def require_ray() -> None:
    """Raise `RuntimeError` unless Ray is installed."""
    if find_spec("ray") is None:
        raise RuntimeError("Ray is required for backend='ray': pip install \"swath[ray]\"")


def resources_of(num_gpus: Any, ray_kwargs: Any) -> dict[str, Any]:
    """What an actor asks for, as options of `ray.remote`.

    Args:
        num_gpus: as it was given.
        ray_kwargs: other options, as they were given.

    Raises:
        TypeError: not a mapping, or not a number.
        ValueError: a number out of range, or something that is not the user's to say.
    """
    if isinstance(num_gpus, bool) or not isinstance(num_gpus, int | float):
        raise TypeError(f"num_gpus={num_gpus!r} must be a number")
    if not 0 <= num_gpus < math.inf:
        raise ValueError(f"num_gpus={num_gpus!r} must be a number ≥ 0")
    if ray_kwargs is not None and not isinstance(ray_kwargs, Mapping):
        raise TypeError(f"ray_kwargs is of type {type(ray_kwargs).__name__}; give a dict of options of ray.remote()")
    options = dict(ray_kwargs or {})
    for option in _OURS:
        if option in options:
            raise ValueError(f"ray_kwargs has {option!r}, which Swath sets itself; leave it out")
    if "num_gpus" in options:
        raise ValueError(f"ray_kwargs has num_gpus={options['num_gpus']!r}; give it as num_gpus of the Evaluator")
    return {**options, "num_gpus": num_gpus}


def step_of(step: object) -> int | None:
    """A training step as an int of Python's; `TypeError` for anything else but `None`."""
    return None if step is None else _integer("step", step, ": the training step the evaluation belongs to")


def _require_positive(name: str, value: object, what: str = "number of seconds") -> None:
    """Raise `ValueError` unless the value is a finite number > 0."""
    if isinstance(value, bool) or not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{name}={value!r} must be a finite {what} > 0")


def _integer(name: str, value: object, meaning: str) -> int:
    """The value as an int of Python's, also from numpy's and torch's."""
    try:
        return index(value if not isinstance(value, bool) else "")  # type: ignore[arg-type]  # that is found out
    except TypeError:
        raise TypeError(f"{name}={value!r} must be an integer{meaning}") from None
