"""How each life of an evaluator's workers is begun."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from swath.errors import WorkerLate
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.request import EvalRequest
from swath.evaluation.setting import Setting, SettingRequest, private_copy, require_own
from swath.evaluation.worker import EvalWorker, noted
from swath.rollout.hosts.sources import is_env_instance
from swath.workers.base import Job
from swath.workers.tickets import Name

_log = logging.getLogger("swath")

PRELOADED = ("swath.evaluation.worker", "gymnasium", "tensordict")
"""What every worker imports in any case."""

PUBLIC = ("rollout",)
"""Methods by which an actor shows of what kind it is."""


class Jobs:
    """Makes jobs. What is to be built at once is built here: what a thread plays in, unless all is still to be built.

    Args:
        options: what each worker builds, where they live, and how many they are; the policy is copied here.
        registered: name and namespace of the worker, on Ray.
        joins: another driver has begun it.

    Attributes:
        stuck: the name of the thread that closes and does not come to an end, if there is one.

    Raises:
        TypeError: the policy cannot be copied, or not with all that it runs.
        Exception: what building the env raised.
    """

    def __init__(
        self, options: EvaluatorOptions, registered: tuple[str, str] | None = None, *, joins: bool = False
    ) -> None:
        self._registered, self._joins = registered, joins
        request = options.setting
        require_own(request.policy)
        if request.policy is not None:
            request = replace(request, policy=private_copy(request.policy))
        borrowed = any(map(is_env_instance, request.entries))
        self._request, self._options = request, options
        self._turn = threading.Lock() if borrowed else None  # held while envs that were handed in are used
        at_once = not request.alone and (request.factory is None or borrowed)
        self._built = Setting(request) if at_once else None
        self._last: Setting | None = None
        self.stuck: list[str] = []

    def __call__(self, name: Name) -> Job:
        """How to bring up this life of this worker."""
        options = self._options
        ready, self._built = self._built, None
        post = name, options.num_workers, options.place
        if self._turn is not None:
            build: Callable[[], EvalWorker] = partial(self._play_in_turn, ready, *post)
        elif ready is not None:
            build = partial(EvalWorker, ready, *post)
        else:
            build = partial(_worker, self._request, *post, options.request)
        before, threads = None if options.place == "thread" else options.init_fn, options.settings.num_threads or 1
        public = () if self._registered is None else PUBLIC
        return Job(build, name, threads, before, options.resources, public, self._registered, self._joins)

    def close(self, timeout: float) -> None:
        """Close what was built for nobody, and envs that were handed in and are open yet: in a thread, for it may hang.

        Args:
            timeout: in seconds; if it takes longer the thread is `stuck`.
        """
        busy = self._turn is not None and self._turn.locked()
        left = [each for each in (self._built, None if busy else self._last) if each is not None and not each.closed]
        self._built = None
        if left:
            closing = threading.Thread(target=_close_all, args=(left,), name="swath eval closes", daemon=True)
            closing.start()
            closing.join(timeout)
            self.stuck = [closing.name] if closing.is_alive() else []

    def _play_in_turn(self, ready: Setting | None, name: Name, workers: int, place: str) -> EvalWorker:
        """One life after another plays in envs that were handed in."""
        assert self._turn is not None
        with noted(name, place):
            if self._turn.locked():
                raise WorkerLate(f"{self._request.env} is still in a call that has not returned; use another env")
            self._last = ready or Setting(self._request)
            return EvalWorker(self._last, name, workers, place, self._turn)


def _worker(request: SettingRequest, name: Name, workers: int, place: str, conditions: EvalRequest) -> EvalWorker:
    with noted(name, place):
        return EvalWorker(Setting(request), name, workers, place, conditions=conditions)


def _close_all(settings: Sequence[Setting]) -> None:
    for setting in settings:
        try:
            setting.close()
        except BaseException:  # noqa: BLE001  the others are to be closed, too
            _log.exception("an env of an evaluation raised when it was closed")
