"""Evaluations one after another beside whoever asks for them: a queue, workers, one thread.

    ask ─▶ queue ─▶ coordination thread: workers.perform ─▶ finish ─▶ show ─▶ readable

The queue decides, under one lock; nothing of the user's is called while it is held.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from swath.errors import Closed, SwathError, warn
from swath.evaluation.queue import Brief, Ending, EvalQueue, Request
from swath.evaluation.request import EvalRequest
from swath.evaluation.result import EvalResult, Performed
from swath.evaluation.workers import Cancelled, EvalWorkers
from swath.options import seconds
from swath.seeds import fresh_root

_log = logging.getLogger("swath")

MANY_WAITING = 16
JOIN_S = 1.0
EXIT_S = 2.0
"""How long the interpreter's end waits for evaluations that nobody shut down."""


class EvaluationService:
    """Evaluations in order of acceptance. Any thread may use it.

    Args:
        workers: play them; the service's own from now on.
        queue: what waits, runs and is unread.
        request: the conditions of all; step, version and, where it is `None`, the seed are filled in.
        finish: makes the result of what was performed; what it raises is the outcome.
        show: gets each result before it can be read, and what fetches the weights it was made with, by model id.
    """

    def __init__(
        self,
        workers: EvalWorkers,
        queue: EvalQueue,
        request: EvalRequest,
        finish: Callable[[Performed], Any],
        show: Callable[[Any, Callable[[], Mapping[str, Mapping[str, Any]]]], None],
    ) -> None:
        self._workers, self._queue, self._request = workers, queue, request
        self._finish, self._to_show = finish, show
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._performing = False
        self._warned = False

    @property
    def pending(self) -> bool:
        """Whether an accepted async request has no readable outcome."""
        with self._changed:
            return self._queue.pending

    @property
    def closed(self) -> bool:
        """Whether it is over."""
        return self._queue.closed

    def evaluate(self, supply: Callable[[], Brief], step: int | None) -> EvalResult:
        """Ask for an evaluation and wait for its outcome; an interrupt cancels it. See `trigger`.

        Raises:
            Closed: the service is closed, or was meanwhile.
            SwathError: called by the thread that would have to bring the outcome.
            BaseException: the outcome is an error.
        """
        self._require_other_thread()
        request = self._ask(supply, step, sync=True)
        assert request is not None, "only async requests are skipped"
        try:
            with self._changed:
                self._wait(lambda: request.ending is not None or self._queue.closed, None)
        except BaseException:
            self.cancel(request)
            raise
        if request.ending is None:
            raise Closed("the evaluator was shut down while its evaluation was waited for")
        return request.ending.value()

    def trigger(self, supply: Callable[[], Brief], step: int | None) -> bool:
        """Ask for an evaluation.

        Args:
            supply: copies what it needs; called only if the request is admitted, in this thread.
            step: the training step; `None`: the next of the service's count.

        Returns:
            Whether it was accepted; else it was skipped.

        Raises:
            Closed: the service is closed.
            SwathError: it is busy, and its busy policy says so.
            Exception: what `supply` raised; nothing was asked for then.
        """
        accepted = self._ask(supply, step, sync=False) is not None
        self._warn_if_many_wait()
        return accepted

    def wait(self, timeout: float | None = None) -> EvalResult | None:
        """The oldest unread outcome of the async requests.

        Args:
            timeout: in seconds; `None` for none.

        Returns:
            `None` if there is nothing to wait for, or the time is over.

        Raises:
            Closed: the service was closed meanwhile.
            SwathError: called by the thread that would have to bring the outcome.
            BaseException: the outcome is an error.
        """
        wanted = None if timeout is None else seconds("timeout", timeout)
        if wanted != 0:
            self._require_other_thread()
        queue = self._queue
        with self._changed:
            was_open = not queue.closed
            self._wait(lambda: bool(queue.unread) or not queue.pending, wanted)
            ending = queue.unread.popleft() if queue.unread else None
            if ending is None and was_open and queue.closed:
                raise Closed("the evaluator was shut down while its evaluation was waited for")
        return None if ending is None else ending.value()

    def cancel(self, request: Request | None = None) -> int:
        """Nobody wants this request, or `None`: any async one, any more; how many are dropped or stopped."""
        with self._changed:
            cancelled = self._queue.cancel(request)
            self._workers.wake()
            self._changed.notify_all()
            return cancelled

    def drop(self) -> None:
        """As `cancel`, and unread outcomes are dropped."""
        with self._changed:
            self.cancel()
            self._queue.unread.clear()

    def counts(self) -> dict[str, int]:
        """What has happened so far."""
        with self._changed:
            return {
                **self._queue.counts,
                "retries": self._workers.retries,
                "restarts": self._workers.restarts,
                "queued": len(self._queue.waiting),
                "unread": len(self._queue.unread),
                "episodes_done": self._workers.complete if self._performing else 0,
            }

    def running(self) -> tuple[int, int, int] | None:
        """What is being evaluated: its step, episodes that are played, and of how many."""
        with self._changed:
            if (running := self._queue.running) is None:
                return None
            played = (self._workers.complete, self._workers.wanted) if self._performing else (0, 0)
            return running.step, played[0], max(played[1], self._request.num_trajectories)

    def state(self) -> tuple[int, int]:
        """The count of steps and that of versions, to go on from.

        Raises:
            SwathError: there is work that is pending, queued or unread.
        """
        with self._changed:
            self._require_rest()
            return self._queue.step_counter, self._queue.policy_version

    def restore(self, step_counter: int, policy_version: int) -> None:
        """Go on from these counts.

        Raises:
            SwathError: there is work that is pending, queued or unread.
        """
        with self._changed:
            self._require_rest()
            self._queue.step_counter, self._queue.policy_version = step_counter, policy_version

    def close(self, timeout: float, *, ends: bool = True) -> None:
        """Refuse new requests, stop what is running, wake those who wait, end workers and thread. Twice is fine.

        Args:
            timeout: in seconds.
            ends: whether a registered worker ends, too, for all drivers.

        Raises:
            ValueError: `timeout` is not a finite number of seconds.
        """
        until = monotonic() + (timeout := seconds("timeout", timeout))
        atexit.unregister(self.close)
        with self._changed:
            first = not self._queue.closed
            self._queue.close()
            self._workers.wake()
            self._changed.notify_all()
            unread = len(self._queue.unread)
            thread = self._thread if self._thread is not None and self._thread.is_alive() else None
            mine = threading.current_thread() is thread
            if not mine and not self._workers.starting:
                self._wait(lambda: not self._performing, timeout)
        self._workers.close(max(0.0, until - monotonic()), ends=ends)
        if thread is not None and not mine:
            thread.join(max(0.0, until - monotonic()) + JOIN_S)
        alive = [thread.name] if thread is not None and not mine and thread.is_alive() else []
        if first and (stuck := [*self._workers.left_behind, *alive]):
            warn(f"threads of an evaluator are stuck in code of the user and are left behind: {', '.join(stuck)}")
        if first and unread:
            _log.info("%d outcomes of evaluations are unread; poll() still gives them", unread)

    def _ask(self, supply: Callable[[], Brief], step: int | None, *, sync: bool) -> Request | None:
        """Weights are copied outside the lock, and only if the request is admitted now; then it is looked at again."""
        with self._changed:
            if not self._queue.admits(sync=sync):
                return None
        brief = supply()
        with self._changed:
            self._start()
            request = self._queue.add(brief, step, sync=sync)
            self._changed.notify_all()
            return request

    def _wait(self, over: Callable[[], bool], timeout: float | None) -> None:
        self._changed.wait_for(over, timeout)

    def _require_other_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise SwathError("on_result cannot wait for an evaluation: it would wait for itself; use trigger_eval()")

    def _require_rest(self) -> None:
        if not self._queue.at_rest:
            raise SwathError("the evaluator has work that is pending, queued, or unread; read it with wait() first")

    def _start(self) -> None:
        """Have the thread run, before there is anything for it to do: where there can be none, nothing was asked."""
        if self._queue.closed or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._coordinate, name="swath eval", daemon=True)
        self._thread.start()
        atexit.register(self.close, EXIT_S, ends=False)  # a thread that is in torch then aborts the interpreter

    def _warn_if_many_wait(self) -> None:
        with self._changed:
            waiting = [each.brief.nbytes for each in self._queue.waiting]
            if len(waiting) < MANY_WAITING or self._warned:
                return
            self._warned = True
        warn(f"{len(waiting)} evaluations wait, and their weights take {sum(waiting):,} bytes; trigger fewer")

    def _coordinate(self) -> None:
        """What the thread does until the service is closed; outcomes are shown before the next evaluation begins."""
        while (request := self._next()) is not None:
            ending = self._performed(request)
            with self._changed:
                self._performing = False
                wanted = self._queue.show(request)
                self._changed.notify_all()
            if wanted and ending.result is not None:
                self._show(ending.result)
            with self._changed:
                self._queue.finish(request, ending)
                self._changed.notify_all()

    def _next(self) -> Request | None:
        """What is to be evaluated."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue.running is not None or self._queue.closed)
            self._performing = self._queue.running is not None
            return self._queue.running

    def _performed(self, request: Request) -> Ending:
        """What came of it; everything that is raised is an outcome."""
        try:
            seed = fresh_root() if self._request.seed is None else self._request.seed
            given = {"seed": seed, "policy_version": request.policy_version, **request.brief.manner}
            asked = replace(self._request, step=request.step, **given)
            performed = self._workers.perform(asked, request.brief.models, lambda: request.cancelled)
            return Ending(self._finish(performed))
        except BaseException as error:  # noqa: BLE001  it is the outcome, and raised where that is read
            if not isinstance(error, Cancelled | Closed):
                _log.error("the evaluation of step %d failed: %s: %s", request.step, type(error).__name__, error)
            return Ending(error=error)

    def _show(self, result: EvalResult) -> None:
        try:
            self._to_show(result, self._workers.models)
        except BaseException as error:  # noqa: BLE001  who waits for the result is not to wait for ever
            _log.error("the result of step %d could not be shown; it stands", result.step, exc_info=error)
