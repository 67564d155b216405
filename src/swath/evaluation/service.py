"""Evaluations of one driver, one after another: a queue, workers, and a coordination thread.

    trigger ─▶ queue ─▶ coordination thread: workers.perform ─▶ build_result ─▶ deliver ─▶ readable

One lock guards the queue. No code of the user runs while a thread holds it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from functools import partial
from operator import index
from time import monotonic
from typing import Any, Self

from swath.errors import Closed, SwathError, warn, warn_of_no_effect
from swath.evaluation.acting import module_of
from swath.evaluation.env_parts import has_moments, moments_of, torchrl_class
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
    """Evaluations in the order of acceptance. Any thread may use it.

    Args:
        options: settings of all evaluations.
        workers: play the evaluations; the service owns them.
        per_slot: play one episode of each env; see `EvalRequest`.

    Attributes:
        queue: waiting, running and unread requests; `changed` guards it.
        changed: notified of each change.
        reporter: builds the results and delivers them.
    """

    def __init__(self, options: EvaluatorOptions, workers: EvalWorkers, *, per_slot: bool = False) -> None:
        self.queue = EvalQueue(options.busy_policy, drop_oldest=options.on_result is not None)
        self.reporter = Reporter(options)
        self.changed = threading.Condition()
        self._workers, self._options, self._per_slot = workers, options, per_slot
        self._thread: threading.Thread | None = None
        self._warned, self._owner = False, Owner()

    @property
    def pending(self) -> bool:
        """Tell whether the outcome of an accepted async request is still to come."""
        with self.changed:
            return self.queue.pending

    @property
    def closed(self) -> bool:
        """Tell whether the service is closed."""
        return self.queue.closed

    def evaluate(self, weights: Any, step: int | None, weights_dict: Mapping[str, Any] | None) -> EvalResult:
        """Request an evaluation and wait for its outcome; an interrupt cancels it. See `trigger`.

        Raises:
            Closed: the service is closed, or was closed meanwhile.
            SwathError: the coordination thread called this.
            BaseException: the evaluation raised it.
        """
        self._require_other_thread()
        request = self._enqueue(weights, step, weights_dict, sync=True)
        assert request is not None, "only async requests are skipped"
        try:
            result: EvalResult = request.outcome.result()
        except BaseException:
            self.cancel(request)
            raise
        return result

    def trigger(
        self, weights: Any, step: int | None = None, weights_dict: Mapping[str, Any] | None = None, **fields: Any
    ) -> bool:
        """Request an evaluation.

        Args:
            weights: of the policy; a module, a TensorDict, a mapping, or a snapshot. This thread copies them if the
                queue admits the request.
            step: the training step; `None`: the queue counts.
            weights_dict: weights by model id; its policy weights take precedence over `weights`.
            **fields: further fields of the `QueuedEvaluation`. `fetch_unread` has no effect if there are requests.

        Returns:
            Whether the request was accepted; otherwise it was skipped.

        Raises:
            Closed: the service is closed.
            SwathError: the service is busy, and its busy policy is to raise.
            TypeError: the weights or the step are of the wrong kind.
            KeyError: no scheme declares a model.
            ValueError: the statistics are in memory which the training writes.
        """
        request = self._enqueue(weights, step, weights_dict, sync=False, **fields)
        waiting = [] if self._warned else self.queue.waiting
        if len(waiting) >= MANY_WAITING:
            self._warned = True
            nbytes = sum(snapshot.nbytes for queued in waiting for snapshot in queued.models.values())
            warn(f"{len(waiting)} evaluations wait, and their weights take {nbytes:,} bytes; trigger fewer")
        return request is not None

    def wait(self, timeout: float | None = None) -> EvalResult | None:
        """Wait for the oldest unread outcome of the async requests and return it.

        Args:
            timeout: time limit in seconds; `None` for none.

        Returns:
            `None` if nothing is pending or unread, or the time has passed.

        Raises:
            Closed: the service was closed meanwhile.
            SwathError: the coordination thread called this.
            BaseException: the evaluation raised it.
        """
        limit = None if timeout is None else seconds("timeout", timeout)
        if limit != 0:
            self._require_other_thread()
        queue = self.queue
        with self.changed:
            was_open = not queue.closed
            self.changed.wait_for(lambda: bool(queue.unread) or not queue.pending, limit)
            outcome = queue.unread.popleft() if queue.unread else None
            if outcome is None and was_open and queue.closed:
                raise Closed("the evaluator was shut down while its evaluation was waited for")
        return None if outcome is None else outcome.result()

    def wait_until_closed(self, timeout: float) -> None:
        """Wait until the service is closed, for some seconds at most."""
        with self.changed:
            self.changed.wait_for(lambda: self.queue.closed, timeout)

    def cancel(self, *requests: QueuedEvaluation) -> int:
        """Cancel these requests, or all async ones if none is named; return how many were dropped or will stop."""
        with self.changed:
            cancelled = self.queue.cancel(*requests)
            self._workers.wake()
            self.changed.notify_all()
            return cancelled

    def stats(self) -> dict[str, float]:
        """Return the counts of events so far and the numbers of the newest result."""
        with self.changed:
            return {
                **self.queue.counts,
                **self.reporter.counts,
                "retries": self._workers.retries,
                "restarts": self._workers.restarts,
                "queued": len(self.queue.waiting),
                "unread": len(self.queue.unread),
                "episodes_done": self._workers.completed,
                "workers": self._options.num_workers,
                **self.reporter.newest,
            }

    def progress(self) -> str:
        """Describe the running evaluation and its progress; return an empty text if nothing runs."""
        with self.changed:
            if not self.queue.active:
                return ""
            planned = max(self._workers.planned, self._options.num_trajectories)
            return f"step {self.queue.active[0].step}, {self._workers.completed} of {planned} episodes; "

    def idle_queue(self) -> EvalQueue:
        """Return the queue, which must have no request in progress.

        Raises:
            SwathError: requests are pending, queued or unread.
        """
        with self.changed:
            if self.queue.active or self.queue.unread:
                text = "the evaluator has work that is pending, queued, or unread; read it with wait() first"
                raise SwathError(text)
            return self.queue

    def continue_from(self, step_counter: int, policy_version: int, best_reward: float | None) -> None:
        """Continue the counts of another evaluator; `None` keeps the best reward of this one.

        Raises:
            SwathError: requests are pending, queued or unread.
        """
        with self.changed:
            queue, best = self.idle_queue(), self.reporter.best
            queue.step_counter, queue.policy_version = step_counter, policy_version
            if best is not None and best_reward is not None:
                best.reward = best_reward

    def close(self, timeout: float, *, end_shared: bool = True) -> None:
        """Refuse new requests, stop the running one, wake blocked callers, end workers and thread.

        A second call does nothing.

        In a fork of the process that began the workers this does nothing.

        Args:
            timeout: time limit in seconds.
            end_shared: whether to end a shared worker, for all drivers.

        Raises:
            ValueError: `timeout` is not a finite number of seconds.
        """
        deadline, queue = monotonic() + (timeout := seconds("timeout", timeout)), self.queue
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
                self.changed.wait_for(lambda: not queue.active or queue.active[0].played, timeout)
        self._workers.close(max(0.0, deadline - monotonic()), end_shared=end_shared)
        stuck = self._workers.stuck_threads
        if thread is not None:
            thread.join(max(0.0, deadline - monotonic()) + JOIN_S)
            stuck += [thread.name] if thread.is_alive() else []
        if first and stuck:
            warn(f"threads of an evaluator are stuck in code of the user and are left behind: {', '.join(stuck)}")
        if self._per_slot:
            queue.unread.clear()
        elif first and unread:
            _log.info("%d outcomes of evaluations are unread; poll() still gives them", unread)

    def _enqueue(
        self, weights: Any, step: int | None, weights_dict: Mapping[str, Any] | None, *, sync: bool, **fields: Any
    ) -> QueuedEvaluation | None:
        """Copy the weights outside the lock, add the request to the queue, and return it unless it is skipped."""
        with self.changed:
            if not self.queue.admits(sync=sync):
                return None
        models, has_new_weights = self._copy_weights(weights, dict(weights_dict or {}))
        step = None if step is None else index(step)
        request = QueuedEvaluation(step, sync, models, has_new_weights, **fields)
        with self.changed:
            self._start_thread()
            if request.fetch_unread:
                if self.queue.active or self.queue.unread:
                    return None
            elif self._per_slot:
                self.cancel()
                self.queue.unread.clear()
            accepted = self.queue.add(request)
            self.changed.notify_all()
            return request if accepted else None

    def _copy_weights(self, weights: Any, sources: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return snapshots by model id, and whether the caller sent any; else the policy's module is the source."""
        options = self._options
        if isinstance(options.env, torchrl_class("EnvCreator")) and (of_env := sources.keys() - {POLICY}):
            raise ValueError(f"statistics of an EnvCreator are shared with training; leave {', '.join(of_env)} out")
        if weights is not None and sources.setdefault(POLICY, weights) is not weights:
            warn_of_no_effect("weights", "weights_dict has 'policy', which counts")
        if options.schemes is not None:
            if unknown := sorted(sources.keys() - options.schemes.keys()):
                raise KeyError(f"weights for {unknown}, but weight_sync_schemes declare {sorted(options.schemes)}")
            sources = {model_id: source for model_id, source in sources.items() if options.schemes[model_id].sends}
        models = {
            model_id: snapshot_of(moments_of(source) if model_id != POLICY and has_moments(source) else source)
            for model_id, source in sources.items()
        }
        module = None if POLICY in sources else module_of(options.policy)
        return ({POLICY: snapshot_of(module), **models} if module and module.state_dict() else models), bool(models)

    def _require_other_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise SwathError("on_result cannot wait for an evaluation: it would wait for itself; use trigger_eval()")

    def _start_thread(self) -> None:
        """Start the coordination thread, before a request is added: if that fails, nothing was requested."""
        if self.queue.closed or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._coordinate, name="swath eval", daemon=True)
        self._thread.start()

    def _coordinate(self) -> None:
        """Run requests until the service is closed; deliver each outcome before the next evaluation begins."""
        queue = self.queue
        while True:
            with self.changed:
                self.changed.wait_for(lambda: queue.active or queue.closed)
                if not queue.active:
                    return
                request = queue.active[0]
            result, error = self._run(request)
            with self.changed:
                deliver = queue.mark_played(request)
                self.changed.notify_all()
            if deliver and result is not None:
                self.reporter.deliver(result, self._workers.models)
            with self.changed:
                queue.finish(request, result, error)
                self.changed.notify_all()

    def _run(self, queued: QueuedEvaluation) -> tuple[EvalResult | None, BaseException | None]:
        """Carry out a request and return its result or its exception."""
        try:
            if queued.fetch_unread:
                evaluation = self._workers.fetch_unread(queued)
                queued.cancelled = queued.cancelled or evaluation is None  # then it has no outcome
                return None if evaluation is None else self.reporter.build_result(*evaluation), None
            seed = fresh_root() if self._options.seed is None else self._options.seed
            record = self._options.metrics_fn is not None
            request = EvalRequest(queued.step or 0, seed, record, self._per_slot, **queued.request_fields)
            return self.reporter.build_result(request, self._workers.perform(queued, request)), None
        except BaseException as error:  # noqa: BLE001  it is the outcome, and raised where that is read
            if not isinstance(error, Closed):
                _log.error("the evaluation of step %d failed: %s: %s", queued.step, type(error).__name__, error)
            return None, error


class ServiceOwner:
    """Base of the public evaluators: they shut their service down.

    Args:
        service: runs the evaluations; this object owns it.
        end_shared: whether to end a shared worker when this object is collected as garbage, or at exit.
    """

    def __init__(self, service: EvaluationService, *, end_shared: bool = True) -> None:
        self._service = service
        # Also at the interpreter's exit, which aborts if a thread runs torch code then.
        self._watch = GarbageWatch(self, partial(service.close, GARBAGE_S, end_shared=end_shared))

    def shutdown(self, timeout: float = 5.0) -> None:
        """Stop the running evaluation, close the envs where they live, end workers, for all handles, and threads.

        A second call does nothing.

        Args:
            timeout: time limit in seconds.
        """
        self._service.close(timeout)
        self._watch.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
