"""Evaluations one after another beside whoever asks for them: a queue, workers, one thread.

    ask ─▶ queue ─▶ coordination thread: workers.perform ─▶ finish ─▶ show ─▶ readable

The queue decides, under one lock; nothing of the user's is called while it is held.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from functools import partial
from operator import index
from time import monotonic
from typing import Any, Self

from swath.errors import Closed, SwathError, warn, warn_of_no_effect
from swath.evaluation.acting import module_of
from swath.evaluation.env_parts import has_moments, moments_of
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.queue import EvalQueue, QueuedEvaluation
from swath.evaluation.reporting import Reporter
from swath.evaluation.result import EvalResult
from swath.evaluation.worker import EvalRequest
from swath.evaluation.workers import EvalWorkers
from swath.options import seconds
from swath.owner import Owner
from swath.seeds import fresh_root
from swath.weights.snapshot import POLICY, snapshot_of
from swath.workers.garbage import GarbageWatch

_log = logging.getLogger("swath")

MANY_WAITING = 16
JOIN_S = 1.0
GARBAGE_S = 2.0


class EvaluationService:
    """Evaluations in order of acceptance. Any thread may use it.

    Args:
        options: what all evaluations have in common.
        workers: play them; the service's own from now on.
        per_slot: play one episode of each env; see `EvalRequest`.

    Attributes:
        queue: what waits, runs and is unread; guarded by `changed`.
        changed: notified with each change.
        reporter: makes the results and shows them.
    """

    def __init__(self, options: EvaluatorOptions, workers: EvalWorkers, *, per_slot: bool = False) -> None:
        self.queue = EvalQueue(options.busy_policy, reported=options.on_result is not None)
        self.reporter = Reporter(options)
        self.changed = threading.Condition()
        self._workers, self._options, self._per_slot = workers, options, per_slot
        self._thread: threading.Thread | None = None
        self._warned, self._owner = False, Owner()

    @property
    def pending(self) -> bool:
        """Whether an accepted async request has no readable outcome."""
        with self.changed:
            return self.queue.pending

    @property
    def asker(self) -> str:
        """The name under which registered workers know this service."""
        return self._workers.asker

    @property
    def closed(self) -> bool:
        """Whether it is over."""
        return self.queue.closed

    def evaluate(self, weights: Any, step: int | None, weights_dict: Mapping[str, Any] | None) -> EvalResult:
        """Ask for an evaluation and wait for its outcome; an interrupt cancels it. See `trigger`.

        Raises:
            Closed: the service is closed, or was meanwhile.
            SwathError: called by the thread that would have to bring the outcome.
            BaseException: the outcome is an error.
        """
        self._require_other_thread()
        request = self._ask(weights, step, weights_dict, sync=True)
        assert request is not None, "only async requests are skipped"
        try:
            result: EvalResult = request.outcome.result()
        except BaseException:
            self.cancel(request)
            raise
        return result

    def trigger(
        self, weights: Any, step: int | None = None, weights_dict: Mapping[str, Any] | None = None, **manner: Any
    ) -> bool:
        """Ask for an evaluation.

        Args:
            weights: for the policy; a module, a TensorDict, a mapping, or a snapshot. They are copied, in this thread,
                if the request is admitted.
            step: the training step; `None`: the next of the count.
            weights_dict: by model id; what it has for the policy counts.
            **manner: what else its `EvalRequest` has.

        Returns:
            Whether it was accepted; else it was skipped.

        Raises:
            Closed: the service is closed.
            SwathError: it is busy, and its busy policy says so.
            TypeError: not weights, or not a step; nothing was asked for then.
            KeyError: weights of a model that no scheme declares.
            ValueError: statistics that are in memory which the training writes.
        """
        accepted = self._ask(weights, step, weights_dict, sync=False, **manner) is not None
        waiting = [] if self._warned else [*self.queue.waiting]
        if len(waiting) >= MANY_WAITING:
            self._warned = True
            nbytes = sum(snapshot.nbytes for each in waiting for snapshot in each.models.values())
            warn(f"{len(waiting)} evaluations wait, and their weights take {nbytes:,} bytes; trigger fewer")
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
        queue = self.queue
        with self.changed:
            was_open = not queue.closed
            self.changed.wait_for(lambda: bool(queue.unread) or not queue.pending, wanted)
            outcome = queue.unread.popleft() if queue.unread else None
            if outcome is None and was_open and queue.closed:
                raise Closed("the evaluator was shut down while its evaluation was waited for")
        return None if outcome is None else outcome.result()

    def pause(self, seconds: float) -> None:
        """Let so many seconds pass, fewer if the service is closed meanwhile."""
        with self.changed:
            self.changed.wait_for(lambda: self.queue.closed, seconds)

    def cancel(self, *requests: QueuedEvaluation) -> int:
        """Nobody wants these any more, or any async one if none is named; how many are dropped or stopped."""
        with self.changed:
            cancelled = self.queue.cancel(*requests)
            self._workers.wake()
            self.changed.notify_all()
            return cancelled

    def stats(self) -> dict[str, float]:
        """What has happened so far."""
        with self.changed:
            return {
                **self.queue.counts,
                **self.reporter.counts,
                "retries": self._workers.retries,
                "restarts": self._workers.restarts,
                "queued": len(self.queue.waiting),
                "unread": len(self.queue.unread),
                "episodes_done": self._workers.complete,
                "workers": self._options.num_workers,
                **self.reporter.newest,
            }

    def progress(self) -> str:
        """What is being evaluated and how far it is, in words; empty if nothing is."""
        with self.changed:
            of = max(self._workers.wanted, self._options.num_trajectories)
            steps = [f"step {running.step}, {self._workers.complete} of {of} episodes; " for running in self.queue.live]
            return steps[0] if steps else ""

    def queue_at_rest(self) -> EvalQueue:
        """The queue, in which nothing is on its way.

        Raises:
            SwathError: there is work that is pending, queued or unread.
        """
        with self.changed:
            if self.queue.live or self.queue.unread:
                text = "the evaluator has work that is pending, queued, or unread; read it with wait() first"
                raise SwathError(text)
            return self.queue

    def close(self, timeout: float, *, ends: bool = True) -> None:
        """Refuse new requests, stop what is running, wake those who wait, end workers and thread. Twice is fine.

        In a fork of the process that began them nothing is done.

        Args:
            timeout: in seconds.
            ends: whether a registered worker ends, too, for all drivers.

        Raises:
            ValueError: `timeout` is not a finite number of seconds.
        """
        until, queue = monotonic() + (timeout := seconds("timeout", timeout)), self.queue
        if not self._owner.is_here:
            return
        with self.changed:
            first = not queue.closed
            queue.close()
            self._workers.wake()
            self.changed.notify_all()
            unread, thread = len(queue.unread), self._thread
            if thread is threading.current_thread() or (thread is not None and not thread.is_alive()):
                thread = None
            if thread is not None and self._workers.is_up:
                self.changed.wait_for(lambda: not queue.live or queue.live[0].shown, timeout)
        self._workers.close(max(0.0, until - monotonic()), ends=ends)
        stuck = self._workers.abandoned
        if thread is not None:
            thread.join(max(0.0, until - monotonic()) + JOIN_S)
            stuck += [thread.name] if thread.is_alive() else []
        if first and stuck:
            warn(f"threads of an evaluator are stuck in code of the user and are left behind: {', '.join(stuck)}")
        if self._per_slot:
            queue.unread.clear()
        elif first and unread:
            _log.info("%d outcomes of evaluations are unread; poll() still gives them", unread)

    def _ask(self, *given: Any, sync: bool, **manner: Any) -> QueuedEvaluation | None:
        """Weights are copied outside the lock, and only if the request is admitted now; then it is looked at again."""
        with self.changed:
            if not self.queue.admits(sync=sync):
                return None
        request = self._request(*given)
        request.sync, request.manner = sync, manner
        with self.changed:
            self._start()
            if request.manner.get("look"):
                if self.queue.live or self.queue.unread:
                    return None
            elif self._per_slot:
                self.cancel()
                self.queue.unread.clear()
            accepted = self.queue.add(request)
            self.changed.notify_all()
            return request if accepted else None

    def _request(self, weights: Any, step: int | None, weights_dict: Mapping[str, Any] | None) -> QueuedEvaluation:
        """With these weights; without any with those of the policy's module as they are now."""
        options, given = self._options, dict(weights_dict or {})
        creator = getattr(sys.modules.get("torchrl.envs"), "EnvCreator", ())  # not imported for it
        if isinstance(options.env, creator) and (of_env := given.keys() - {POLICY}):
            raise ValueError(f"statistics of an EnvCreator are shared with training; leave {', '.join(of_env)} out")
        if weights is not None and given.setdefault(POLICY, weights) is not weights:
            warn_of_no_effect("weights", "weights_dict has 'policy', which counts")
        if options.schemes is not None:
            if unknown := sorted(given.keys() - options.schemes.keys()):
                raise KeyError(f"weights for {unknown}, but weight_sync_schemes declare {sorted(options.schemes)}")
            given = {model_id: source for model_id, source in given.items() if options.schemes[model_id].sends}
        sent = {
            model_id: snapshot_of(moments_of(source) if model_id != POLICY and has_moments(source) else source)
            for model_id, source in given.items()
        }
        module = None if POLICY in given else module_of(options.policy)
        own = {} if module is None or not module.state_dict() else {POLICY: snapshot_of(module)}
        return QueuedEvaluation(None if step is None else index(step), models={**own, **sent}, weighted=bool(sent))

    def _require_other_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise SwathError("on_result cannot wait for an evaluation: it would wait for itself; use trigger_eval()")

    def _start(self) -> None:
        """Have the thread run, before there is anything for it to do: where there can be none, nothing was asked."""
        if self.queue.closed or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._coordinate, name="swath eval", daemon=True)
        self._thread.start()

    def _coordinate(self) -> None:
        """What the thread does until the service is closed; outcomes are shown before the next evaluation begins."""
        queue = self.queue
        while True:
            with self.changed:
                self.changed.wait_for(lambda: queue.live or queue.closed)
                if not queue.live:
                    return
                request = queue.live[0]
            result, error = self._outcome_of(request)
            with self.changed:
                wanted = queue.show(request)
                self.changed.notify_all()
            if wanted and result is not None:
                self.reporter.show(result, self._workers.models)
            with self.changed:
                queue.finish(request, result, error)
                self.changed.notify_all()

    def _outcome_of(self, request: QueuedEvaluation) -> tuple[EvalResult | None, BaseException | None]:
        """What came of a request; everything that is raised is an outcome."""
        try:
            seed = fresh_root() if self._options.seed is None else self._options.seed
            step, record = request.step or 0, self._options.metrics_fn is not None
            asked = EvalRequest(step, request.policy_version, seed, record, self._per_slot, **request.manner)
            if not asked.look:
                return self.reporter.finish(asked, self._workers.perform(request, asked)), None
            found = self._workers.look(request)
            request.cancelled = request.cancelled or found is None  # then there is no outcome
            return None if found is None else self.reporter.finish(*found), None
        except BaseException as error:  # noqa: BLE001  it is the outcome, and raised where that is read
            if not isinstance(error, Closed):
                _log.error("the evaluation of step %d failed: %s: %s", request.step, type(error).__name__, error)
            return None, error


class Face:
    """What faces of an evaluation service have in common: their end.

    Args:
        service: does it all; the face's own from now on.
        ends: whether a registered worker ends, too, where nobody refers to the face any more, or at exit.
    """

    def __init__(self, service: EvaluationService, *, ends: bool = True) -> None:
        self._service = service
        # At the interpreter's end too: a thread that is in torch then aborts it.
        self._watch = GarbageWatch(self, partial(service.close, GARBAGE_S, ends=ends))

    def shutdown(self, timeout: float = 5.0) -> None:
        """Stop what is running, close the envs where they live, end workers, for all handles, and threads.

        Twice is fine.

        Args:
            timeout: in seconds.
        """
        self._service.close(timeout)
        self._watch.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
