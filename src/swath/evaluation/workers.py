"""The workers of an evaluator, which start, get weights, and play rounds of episodes for many evaluations.

    perform ─▶ bring up ─▶ weights ─▶ a round, requested of every worker ─▶ … ─▶ PlayedRounds
                 ▲                       │ the reply is not over: the worker gets the same request again
                 │                       └ a worker is lost: its next life gets the same request
                 └── new workers, if too few are left: no failure is final

One thread uses it, except for `wake` and `close`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

from swath.errors import Closed, FleetFailed, PlacementFailed, WorkerLate, WorkerLost
from swath.evaluation.acting import copy_policy, require_copyable
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.queue import QueuedEvaluation
from swath.evaluation.reporting import PlayedRounds
from swath.evaluation.result import episodes_of
from swath.evaluation.worker import EvalRequest, EvalWorker
from swath.group.group import Request, WorkerGroup
from swath.rollout.hosts.torchrl import CREATOR, reduce_env_creator
from swath.seeds import fresh_root
from swath.weights.channel import Channel
from swath.weights.snapshot import POLICY, Snapshot
from swath.workers import create
from swath.workers.base import Job
from swath.workers.fleet import Fleet
from swath.workers.hosting import run_and_capture
from swath.workers.outcome import Error
from swath.workers.packing import register_reducer
from swath.workers.tickets import Name

register_reducer(*CREATOR, reduce_env_creator)

_log = logging.getLogger("swath")

PRELOADED = ("swath.evaluation.worker", "gymnasium", "tensordict")  # every worker imports these
PUBLIC = ("play", "mark_read")  # methods by which a driver recognises an evaluation worker among Ray actors
GRACE_S = 1.0  # time for a cancelled call to return before its worker counts as stuck
MIN_CLOSE_S = 0.2  # least time for closing an env that no worker has closed
_RAISED = "an env of an evaluation raised when it was closed"


class EvalWorkers:
    """Workers that play evaluations one after another.

    The constructor builds the envs and the policy of a thread, unless both are to be built.

    Args:
        options: number, place and settings of the workers; the policy is copied here.
        registered: name and namespace of a single worker on Ray, which outlives its driver and may be shared.
        joins: whether another driver has begun that worker.

    Attributes:
        driver_id: identifies this driver among the drivers of a shared worker.
        is_up: whether the workers are up.
        completed: number of episodes played so far in the running evaluation.
        planned: number of episodes in its rounds so far.
        retries: number of requests that were repeated after a loss.

    Raises:
        TypeError: the policy, or a module that it runs, cannot be copied.
        Exception: the construction of the env raised it.
    """

    def __init__(
        self, options: EvaluatorOptions, registered: tuple[str, str] | None = None, *, joins: bool = False
    ) -> None:
        self._options, self._registered, self._joins = options, registered, joins
        require_copyable(options.policy)
        self._worker_options = options.for_workers(None if options.policy is None else copy_policy(options.policy))
        self._seed = fresh_root() if options.seed is None else options.seed  # factories draw alike in all workers
        build_now = options.place == "thread" and (options.policy_factory is None or options.has_instances)
        self._built = EvalWorker(self._worker_options, self._seed) if build_now else None
        self._fleet: Fleet | None = None
        self._group: WorkerGroup | None = None
        self._weights: tuple[Mapping[str, Snapshot], int] = {}, 0  # the newest by model id, and their version
        self._is_cancelled: Callable[[], bool] = lambda: False
        self._deadline = 0.0
        self.driver_id, self._evaluations = uuid4().hex, 0
        self._closed = self.is_up = False
        self._losses = self._earlier_restarts = 0
        self._abandoned: list[Fleet] = []  # earlier fleets with stuck workers
        self._closing: threading.Thread | None = None
        self._lock = threading.Lock()
        self.completed = self.planned = self.retries = 0

    @property
    def restarts(self) -> int:
        """Return the number of lives that replaced others."""
        return self._earlier_restarts + (0 if self._fleet is None else self._fleet.restarts)

    @property
    def stuck_threads(self) -> list[str]:
        """Return the names of threads that are stuck and cannot be ended."""
        closing = [self._closing.name] if self._closing is not None and self._closing.is_alive() else []
        fleets = [*self._abandoned, *([] if self._fleet is None else [self._fleet])]
        return [*closing, *(name for fleet in fleets for name in fleet.abandoned)]

    def perform(self, queued: QueuedEvaluation, request: EvalRequest) -> PlayedRounds:
        """Play an evaluation.

        Args:
            queued: has weights by model id, which replace earlier ones. Its `cancelled` is checked
                after each `wake`.
            request: the conditions.

        Raises:
            Closed: the evaluation was cancelled.
            WorkerLost: workers were lost more often than `retries`.
            WorkerLate: the evaluation took too long, or workers did not come up in time.
            PlacementFailed: there was no room for the workers.
            KeyError, ValueError, TypeError: the weights do not fit.
            Exception: code of the user raised it.
        """
        self._evaluations += 1
        options, rounds, stopped = self._options, PlayedRounds(), None
        episodes = range(n := options.num_trajectories)
        with self._session(lambda: queued.cancelled):
            self._bring_up()
            before, _ = self._weights
            self._publish({**before, **queued.models}, queued.policy_version)
            while stopped is None:
                self.planned = episodes.stop
                reports = self._call("play", (self.driver_id, self._evaluations), episodes, request)
                if misfit := next((report.misfit for report in reports.values() if report.misfit is not None), None):
                    self._publish(before, queued.policy_version)
                    raise misfit
                for report in reports.values():
                    rounds.rows |= report.rows
                    rounds.reports.append(report)
                rounds.seconds += max(report.seconds for report in reports.values())
                stopped = options.stop_reason(episodes_of(rounds.rows)["returns"], request.seed)
                episodes = range(episodes.stop, episodes.stop + n)
            rounds.stopped, rounds.retries = stopped, self._losses
            recorded = [worker for worker, report in reports.items() if report.records]
            try:
                for failures in self._call("dump", request.step, options.dump_video, workers=recorded).values():
                    rounds.unwritten += failures
            except (FleetFailed, WorkerLost, WorkerLate) as error:
                rounds.unwritten.append(f"recorders did not come to an end: {error}")
        return rounds

    def fetch_unread(self, queued: QueuedEvaluation) -> tuple[EvalRequest, PlayedRounds] | None:
        """Wait for the rollout that a shared worker plays for any driver, and return it.

        Args:
            queued: a request without weights; see `perform`.

        Returns:
            The request and its result; `None` if the worker plays nothing and every result was read.

        Raises:
            Exception: see `perform`.
        """
        with self._session(lambda: queued.cancelled):
            self._bring_up()
            report = self._call("fetch_unread")[0]
        if report.request is None:
            return None
        return report.request, PlayedRounds(dict(report.rows), seconds=report.seconds, reports=[report])

    def models(self) -> dict[str, dict[str, Any]]:
        """Return the states of the policy, and of other models that got weights, as of the last evaluation.

        The thread that calls `perform` calls this after it.

        Raises:
            WorkerLost: too few workers are left.
            WorkerLate: it took longer than an evaluation may.
        """
        with self._session():
            states: dict[str, Any] = self._call("weights", [*{POLICY: None, **self._weights[0]}], workers=[0])[0]
            return states

    def wake(self) -> None:
        """Wake `perform`, in another thread, so that it checks whether its evaluation was cancelled."""
        if (group := self._group) is not None:
            group.fleet.wake()

    def close(self, timeout: float, *, end_shared: bool = True) -> None:
        """Close the envs where they live and end the workers; log exceptions. May be called during `perform`.

        Args:
            timeout: time limit in seconds.
            end_shared: whether to end a shared worker, for all drivers.
        """
        deadline = monotonic() + timeout
        with self._lock:
            self._closed, group = True, self._group
        try:
            if group is not None:
                fleet, ends_workers = group.fleet, end_shared or self._registered is None
                with suppress(WorkerLate, WorkerLost, FleetFailed):
                    # A joined worker is up already, but this fleet may not know it yet.
                    while end_shared and self._joins and not fleet.up and monotonic() < deadline:
                        group.wait((), lambda: False, group.fleet.event_count, deadline - monotonic())
                with suppress(KeyError):  # no worker was begun
                    for handle in map(fleet.handle, fleet.statuses()) if end_shared else ():
                        handle.outlives_backend = False
                for error in fleet.close(max(0.0, deadline - monotonic()), ask=ends_workers):
                    _log.error(_RAISED, exc_info=error)
        finally:
            built, self._built = self._built, None
            if not (built is None or built.closed or built.env_lock.locked()):  # no worker uses it or closed it
                self._closing = threading.Thread(target=_close, args=[built], name="swath eval closes", daemon=True)
                self._closing.start()  # in a thread, since it may hang
                self._closing.join(max(MIN_CLOSE_S, deadline - monotonic()))

    def begin(self, check_place: Callable[[], None] = lambda: None) -> Fleet:
        """Begin a set of workers without waiting for them; `close` ends them.

        Args:
            check_place: called when the backend is there; if it raises, no worker begins.
        """
        options = self._options
        # This may join a cluster, which takes seconds, so that it happens outside the lock of `close`.
        bare = options.place != "thread" and options.init_fn is not None
        backend = create.backend(options.place, preload=PRELOADED, bare=bare)
        with self._lock:
            if self._closed:
                backend.close()
                raise Closed("the workers were shut down; build another evaluator")
            check_place()
            fleet = self._fleet = Fleet(backend, self._job, options.num_workers, options.survival)
            self._group = WorkerGroup(fleet, Channel(backend.share))
        fleet.process_events()
        models, version = self._weights
        if models or version:
            self._group.channel.publish(models, version=version)
        return fleet

    @contextmanager
    def _session(self, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Call workers within; at the end wait briefly for unanswered calls, and end workers that are stuck."""
        self._is_cancelled, self._losses, self._deadline = is_cancelled, 0, monotonic() + self._options.timeout_s
        try:
            yield
        except FleetFailed as failure:
            raise failure.causes[-1] from None
        finally:
            self.completed = self.planned = 0
            self.retries += min(self._losses, self._options.retries)
            if (group := self._group) is not None:
                group.drop()
                with suppress(WorkerLate):  # late workers are ended below
                    if tickets := [request.ticket for request in group.pending]:  # otherwise the fleet may be closed
                        group.fleet.wait_for_all(tickets, GRACE_S)
                for name in [request.name for request in group.pending if not request.ticket.done]:
                    message = f"{name} was ended: it is stuck in code of the user"
                    group.fleet.replace(name, WorkerLost(message, worker=name.worker, life=name.life))
                group.settle_dropped()

    def _job(self, name: Name) -> Job:
        """Return the start-up data of a worker's life; each life uses the same env instances, if there are any."""
        options, built = self._options, self._built
        if not options.has_instances:
            self._built = None
        shared = self._registered is not None
        build: Callable[[], EvalWorker] = partial(EvalWorker, self._worker_options, self._seed, name, shared=shared)
        if built is not None:
            build = partial(built.restart_as, name)
        before, threads = None if options.place == "thread" else options.init_fn, options.settings.num_threads or 1
        public = PUBLIC if shared else ()
        return Job(build, name, threads, before, options.resources, public, self._registered, self._joins)

    def _bring_up(self) -> None:
        """Wait until the workers are up; begin new ones if too few are left.

        Workers that died between two evaluations are replaced, and do not count as losses.
        """
        if self.is_up and (fleet := self._fleet) is not None:
            with suppress(FleetFailed):
                self._call("weights", (), count_losses=False)
            fleet.forgive()
            if (failure := fleet.failure) is None:
                return
            self._discard(fleet)
            if fleet.backend_lost:
                raise failure.causes[-1]  # tell the user before workers begin in another place
            self._earlier_restarts += self._options.num_workers
        fleet = self._fleet or self.begin()
        try:
            fleet.start()
        except BaseException as failed:
            self._discard(fleet)
            if isinstance(failed, PlacementFailed):
                failed.add_note("ask for less (num_gpus=0, say), or free some; the next evaluation asks again")
            raise
        self.is_up, self._deadline = True, monotonic() + self._options.timeout_s

    def _discard(self, fleet: Fleet) -> None:
        fleet.close(0.0)
        self._abandoned = [old_fleet for old_fleet in (*self._abandoned, fleet) if old_fleet.abandoned]
        self._earlier_restarts += fleet.restarts
        self._fleet, self._group, self.is_up = None, None, False

    def _publish(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Send these weights with the next requests and to new lives, and stop sending other models."""
        assert self._group is not None
        (before, before_version), channel = self._weights, self._group.channel
        changed = {model_id: snapshot for model_id, snapshot in models.items() if before.get(model_id) is not snapshot}
        channel.withdraw(before.keys() - models.keys())
        if changed or version != before_version:
            channel.publish(changed, version=version)
        self._weights = models, version

    def _call(
        self, method: str, *args: Any, workers: Sequence[int] | None = None, count_losses: bool = True
    ) -> dict[int, Any]:
        """Call workers and return their replies; repeat the call after a loss, and after a `Report` that is not over.

        Args:
            method: name of a method of `EvalWorker`.
            *args: its arguments.
            workers: their indices; `None` for all.
            count_losses: whether losses count as retries.
        """
        group, timeout, replies = self._group, self._options.timeout_s, dict[int, Any]()
        assert group is not None
        called = group.fleet.statuses() if workers is None else workers
        while missing := [index for index in called if not getattr(replies.get(index), "is_over", index in replies)]:
            membership, busy = group.fleet.event_count, {request.worker for request in group.open_requests()}
            for worker in group.fleet.up.keys() & {*missing} - busy:
                group.request(worker, method, *args)
            requests = group.open_requests()
            group.wait(requests, self._is_cancelled, membership, max(0.0, self._deadline - monotonic()))
            if self._is_cancelled():
                raise Closed("the evaluation was cancelled")
            answered = [request for request in requests if request.answered]
            if not answered and monotonic() >= self._deadline:
                if group.fleet.up.keys() >= {*missing}:
                    late = tuple(sorted({request.worker for request in requests}))
                    progress = (
                        f"{self.completed} of {self.planned} episodes complete, in {method}() of workers {missing}"
                    )
                    advice = "they are replaced where they are stuck; give more time, fewer episodes, or max_steps"
                    text = f"the evaluation took longer than timeout_s={timeout:g}, with {progress}; {advice}"
                    raise WorkerLate(text, workers=late, deadline=timeout)
                self._deadline = monotonic() + timeout  # restarting workers have their own deadlines
            for request in answered:
                group.settle(request)
                group.close(request)
                replies.pop(request.worker, None)
                if request.reply is not None:
                    replies[request.worker] = request.reply
                elif count_losses:
                    self._count_loss(request)
            if method == "play":
                self.completed = sum(report.complete for report in replies.values())
        return replies

    def _count_loss(self, request: Request) -> None:
        """Count the loss of a worker and start the deadline again; raise the loss if there were too many."""
        self._losses += 1
        if self._losses > self._options.retries:
            raise request.ticket.error or WorkerLost(f"{request.name} could not take its weights")
        self._deadline = monotonic() + self._options.timeout_s


def _close(worker: EvalWorker) -> None:
    if isinstance(closed := run_and_capture(worker.close), Error):
        _log.error(_RAISED, exc_info=closed.exception)
