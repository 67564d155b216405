"""What an `Evaluator` was asked for, checked before anything is built."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from swath.errors import warn_of_no_effect
from swath.evaluate.arena import Making, require_form
from swath.evaluate.predictor import Predicts
from swath.evaluate.request import EvalRequest
from swath.evaluate.setting import Speedup
from swath.evaluators.placing import Place
from swath.extras import need
from swath.options import count
from swath.rollout.hosts.sources import is_env_instance


@dataclass(frozen=True)
class Deadlines:
    """How long things may take, in seconds.

    Attributes:
        start_s: `init_fn`, env and policy in a new worker.
        placement_s: Ray, to place an actor.

    Raises:
        ValueError: not a finite number > 0.
    """

    start_s: float = 300.0
    placement_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value in (("start_timeout_s", self.start_s), ("placement_timeout_s", self.placement_s)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r} must be a finite number of seconds > 0")


@dataclass(frozen=True)
class WorkerOptions:
    """Where evaluations run, and with how many.

    Attributes:
        place: the backend.
        number: of workers, who share the episodes.
        retries: how many may be lost within one evaluation.
        deadlines: until when they must be up.
        init: runs first in each new worker process.
        resources: what Ray is asked for, by actor.
        threads: of torch in each worker that has a process of its own; `None` for one.
        model_ids: whose weights may be sent; `None` for all there are.

    Raises:
        ValueError: a number out of range, or not for this backend.
        TypeError: `init` is no function.
    """

    place: Place = "thread"
    number: int = 1
    retries: int = 1
    deadlines: Deadlines = field(default_factory=Deadlines)
    init: Callable[[], Any] | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    model_ids: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.init is not None and not callable(self.init):
            raise TypeError(f"init_fn is of type {type(self.init).__name__}; it must be callable, or None")
        count("num_workers", self.number)
        count("retries", self.retries, least=0)
        if self.place == "thread" and self.number != 1:
            raise ValueError(
                f"num_workers={self.number} with backend='thread', which has one; use 'process' or 'ray', or num_envs "
                "to step more envs together"
            )
        if self.place != "ray" and self.deadlines.placement_s != Deadlines.placement_s:
            raise ValueError(
                f"placement_timeout_s={self.deadlines.placement_s:g} with backend={self.place!r}: only Ray has to find "
                "room for workers; leave it out"
            )
        if self.place == "thread" and self.init is not None:
            warn_of_no_effect("init_fn", "with backend='thread' there is no new process; it is not called")
            object.__setattr__(self, "init", None)
        if self.place == "thread" and self.threads is not None:
            raise ValueError(
                f"num_threads={self.threads} with backend='thread', which shares torch's threads with training; use "
                "'process' or 'ray', or leave it out"
            )


@dataclass(frozen=True)
class Cast:
    """What plays, and in what.

    Attributes:
        env: any form of env.
        num_envs: slots of each worker.
        policy: the policy, never run itself.
        factory: builds the policy where it runs.
        device: where the policy runs.
        making: how envs are built.
        speedup: how the policy is made quicker.
    """

    env: Any
    num_envs: int | None = None
    policy: Any = None
    factory: Callable[..., Any] | None = None
    device: torch.device | None = None
    making: Making = field(default_factory=Making)
    speedup: Speedup = field(default_factory=Speedup)

    def check(self, place: Place) -> None:
        """Whether this can be played there.

        Raises:
            ValueError: no policy, or two; something that cannot travel to another process; a number of envs that an
                instance or list cannot have.
            TypeError: the factory is no function, or env or policy is something else.
        """
        self._check_policy()
        if place != "thread":
            self._check_travels(place)
        require_form(self.env, self.num_envs, self.making)

    def _check_policy(self) -> None:
        if self.policy is None and self.factory is None:
            raise ValueError("`policy` or `policy_factory` must be provided; got neither")
        if self.policy is not None and self.factory is not None:
            raise ValueError("give `policy` or `policy_factory`, not both")
        if self.factory is not None and not callable(self.factory):
            raise TypeError(f"policy_factory is of type {type(self.factory).__name__}; it must be callable")
        if self.policy is not None and not (callable(self.policy) or isinstance(self.policy, Predicts)):
            raise TypeError(
                f"policy is of type {type(self.policy).__name__}; it must be a callable, an nn.Module, a TensorDict "
                "module, or an object with predict"
            )

    def _check_travels(self, place: Place) -> None:
        if self.policy is not None:
            raise ValueError(
                f"backend={place!r} builds the policy in the worker, so it needs policy_factory instead of policy; "
                "send weights with evaluate() and trigger_eval()"
            )
        if is_creator(self.env):
            raise ValueError(
                f"backend={place!r} builds the env in the worker, and an EnvCreator shares memory with this process; "
                "give the function that it was made of"
            )
        entries = self.env if isinstance(self.env, list | tuple) else [self.env]
        instances = [type(entry).__name__ for entry in entries if is_env_instance(entry)]
        if instances:
            raise ValueError(
                f"backend={place!r} builds the env in the worker, so it needs an id or a callable that returns the "
                f"env, got an instance of {instances[0]}"
            )


def is_creator(env: Any) -> bool:
    """Whether this is TorchRL's maker of envs with a common state; torchrl is not imported for it."""
    creator = getattr(sys.modules.get("torchrl.envs"), "EnvCreator", None)
    return creator is not None and isinstance(env, creator)


@dataclass(frozen=True)
class Filming:
    """What is filmed, and where films go.

    Attributes:
        episodes: how many of the first.
        max_bytes: frames held at most.
        folder: where they are written; `None` leaves them in the result.
        fps: frames per second of files; `None` for the env's own rate, else 30.

    Raises:
        ValueError: a number out of range, or options that need others.
        ImportError: what writes films is not installed.
    """

    episodes: int = 0
    max_bytes: int = 2**30
    folder: Path | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        count("record_video", self.episodes, least=0)
        count("max_video_bytes", self.max_bytes)
        for name, value, needed in (("video_dir", self.folder, self.episodes), ("video_fps", self.fps, self.folder)):
            if value is not None and not needed:
                needs = "record_video of 1 or more" if name == "video_dir" else "video_dir, where films are written"
                raise ValueError(f"{name}={value!r} has no meaning without {needs}")
        if self.fps is not None and not (isinstance(self.fps, int | float) and 0 < self.fps < math.inf):
            raise ValueError(f"video_fps={self.fps!r} must be a finite number > 0")
        if self.folder is not None:
            need("imageio_ffmpeg", extra="video", why="to write films")


@dataclass(frozen=True)
class Extras:
    """What is wanted beside the numbers.

    Attributes:
        prefix: of the names in results.
        filming: what is filmed.
        per_episode: whether results have the returns and lengths of all episodes.

    Raises:
        ValueError: no prefix.
    """

    prefix: str = "eval"
    filming: Filming = field(default_factory=Filming)
    per_episode: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not self.prefix:
            raise ValueError(f"log_prefix={self.prefix!r} must be a non-empty string, e.g. 'eval'")

    def check(self, request: EvalRequest) -> None:
        """Whether so many episodes can be filmed.

        Raises:
            ValueError: there are fewer.
        """
        if self.filming.episodes > request.stop.num_trajectories:
            raise ValueError(
                f"record_video={self.filming.episodes} films more episodes than "
                f"num_trajectories={request.stop.num_trajectories}"
            )
