"""The workers of an evaluator: how many, where, and how each of their lives is begun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from swath.errors import WorkerLate
from swath.evaluate.privacy import private_copy, require_own
from swath.evaluate.request import require_positive
from swath.evaluate.setting import Setting, SettingRequest
from swath.evaluate.worker import EvalWorker, noted
from swath.options import Restarts, Survival, count
from swath.rollout.hosts.sources import is_env_instance
from swath.workers import create
from swath.workers.base import Backend, Job
from swath.workers.tickets import Name

Place = Literal["thread", "process", "ray"]

PRELOADED = ("swath.evaluate.worker", "gymnasium", "tensordict")
"""What every worker imports in any case."""


@dataclass(frozen=True)
class WorkerOptions:
    """Where evaluations run, and with how many.

    Attributes:
        place: the backend.
        number: of workers, who share the episodes.
        retries: how many may be lost within one evaluation.
        start_timeout_s: seconds for `init_fn`, env and policy in a new worker.
        placement_timeout_s: seconds for Ray to place an actor.
        init: runs first in each new worker process.
        resources: what Ray is asked for, by actor.
        threads: of torch in each worker that has a process of its own; `None` for one.
        model_ids: whose weights may be sent; `None` for all there are.

    Raises:
        ValueError: a number out of range.
        TypeError: `init` is no function.
    """

    place: Place = "thread"
    number: int = 1
    retries: int = 1
    start_timeout_s: float = 300.0
    placement_timeout_s: float = 60.0
    init: Callable[[], Any] | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    model_ids: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.init is not None and not callable(self.init):
            raise TypeError(f"init_fn is of type {type(self.init).__name__}; it must be callable, or None")
        count("num_workers", self.number)
        count("retries", self.retries, least=0)
        require_positive("start_timeout_s", self.start_timeout_s)
        require_positive("placement_timeout_s", self.placement_timeout_s)

    @property
    def survival(self) -> Survival:
        """What the fleet does about deaths within one evaluation."""
        restarts = Restarts(max_per_worker=self.retries, backoff_s=0.0, forgive_after_s=None)
        return Survival(
            restarts,
            fragment_timeout_s=None,
            placement_timeout_s=self.placement_timeout_s,
            start_timeout_s=self.start_timeout_s,
            waits_for_room=False,
        )

    def backend(self) -> Backend:
        """The place where they live."""
        return create.backend(self.place, preload=PRELOADED, bare=self.init is not None)


class Jobs:
    """Makes jobs. What is to be built at once is built here: what a thread plays in, unless all is still to be built.

    Args:
        request: what each worker builds; its policy is copied here.
        options: where they live, and how many they are.

    Raises:
        TypeError: the policy cannot be copied, or not with all that it runs.
        Exception: what building the env raised.
    """

    def __init__(self, request: SettingRequest, options: WorkerOptions) -> None:
        require_own(request.policy)
        if request.policy is not None:
            request = replace(request, policy=private_copy(request.policy))
        entries = request.env if isinstance(request.env, list | tuple) else [request.env]
        borrowed = any(map(is_env_instance, entries))
        self._request, self._options = request, options
        self._turn = threading.Lock() if borrowed else None  # held while envs that were handed in are used
        at_once = not request.alone and (request.factory is None or borrowed)
        self._built = Setting(request) if at_once else None
        self._last: Setting | None = None

    def __call__(self, name: Name) -> Job:
        """How to bring up this life of this worker."""
        options = self._options
        ready, self._built = self._built, None
        post = name, options.number, options.place
        if self._turn is not None:
            build: Callable[[], EvalWorker] = partial(self._play_in_turn, ready, *post)
        elif ready is not None:
            build = partial(EvalWorker, ready, *post)
        else:
            build = partial(_worker, self._request, *post)
        return Job(build, name, threads=options.threads or 1, before=options.init, resources=options.resources)

    def leftover(self) -> list[Callable[[], None]]:
        """What closes what was built for nobody, and envs that were handed in and are open yet."""
        stuck = self._turn is not None and self._turn.locked()
        last = None if self._last is None or self._last.closed or stuck else self._last
        built, self._built = self._built, None
        return [setting.close for setting in (built, last) if setting is not None]

    def _play_in_turn(self, ready: Setting | None, name: Name, workers: int, place: str) -> EvalWorker:
        """One life after another plays in envs that were handed in."""
        assert self._turn is not None
        with noted(name, place):
            if self._turn.locked():
                raise WorkerLate(f"{self._request.env} is still in a call that has not returned; use another env")
            self._last = ready or Setting(self._request)
            return EvalWorker(self._last, name, workers, place, self._turn)


def _worker(request: SettingRequest, name: Name, workers: int, place: str) -> EvalWorker:
    with noted(name, place):
        return EvalWorker(Setting(request), name, workers, place)
