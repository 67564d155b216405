"""The workers of an evaluator, from one evaluation to the next: brought up, given weights, asked for their episodes.

    perform ─▶ workers there? ─▶ weights ─▶ a round, asked of every worker ─▶ … ─▶ PlayedRounds
                 ▲                            │ a reply that is not over: its worker is asked again
                 │                            └ a worker is lost: its next life is asked for the same
                 └── anew, if too few are left: no failure is final

Used by one thread, but for `wake` and `close`.
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
from swath.evaluation.acting import private_copy, require_own
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
from swath.workers.outcome import Failure
from swath.workers.packing import register_reducer
from swath.workers.tickets import Name

register_reducer(*CREATOR, reduce_env_creator)

_log = logging.getLogger("swath")

PRELOADED = ("swath.evaluation.worker", "gymnasium", "tensordict")  # what every worker imports in any case
PUBLIC = ("play", "mark_read")  # methods by which an actor shows of what kind it is
_RAISED = "an env of an evaluation raised when it was closed"
GRACE_S = 1.0  # how long a slice that nobody waits for any more may take before its worker counts as stuck
LEAST_S = 0.2  # how long what no worker has closed may take to be closed, at least


class EvalWorkers:
    """Workers that play evaluations one after another.

    What is to be built at once is built here: what a thread plays in, unless all is still to be built.

    Args:
        options: what they build, where they live, and how many they are; the policy is copied here.
        registered: name and namespace of the one worker, which then outlives its driver; on Ray.
        joins: another driver has begun that worker.

    Attributes:
        asker: a name for these workers' driver, which no other has.
        is_up: whether workers have been brought up.
        complete: how many episodes of the present evaluation are played.
        wanted: how many its rounds have so far.
        retries: how often a worker was asked again after one was lost.

    Raises:
        TypeError: the policy cannot be copied, or not with all that it runs.
        Exception: what building the env raised.
    """

    def __init__(
        self, options: EvaluatorOptions, registered: tuple[str, str] | None = None, *, joins: bool = False
    ) -> None:
        self._options, self._registered, self._joins = options, registered, joins
        require_own(options.policy)
        self._theirs = options.for_workers(None if options.policy is None else private_copy(options.policy))
        self._root = fresh_root() if options.seed is None else options.seed  # factories draw alike in all workers
        at_once = options.place == "thread" and (options.policy_factory is None or options.lent)
        self._built = EvalWorker(self._theirs, self._root) if at_once else None
        self._fleet: Fleet | None = None
        self._group: WorkerGroup | None = None
        self._held: Mapping[str, Snapshot] = {}  # the newest weights by model id, also for workers to come
        self._version = 0  # of these
        self._stopped: Callable[[], bool] = lambda: False
        self._until = 0.0
        self.asker, self._evaluations = uuid4().hex, 0
        self._closed = self.is_up = False
        self._losses = self._earlier_restarts = 0
        self._left: list[Fleet] = []  # earlier ones, with workers that cannot be ended
        self._closing: threading.Thread | None = None
        self._lock = threading.Lock()
        self.complete = self.wanted = self.retries = 0

    @property
    def restarts(self) -> int:
        """Lives that replaced others."""
        return self._earlier_restarts + (0 if self._fleet is None else self._fleet.restarts)

    @property
    def abandoned(self) -> list[str]:
        """What cannot be ended, since it is stuck: threads, by name."""
        closing = [self._closing.name] if self._closing is not None and self._closing.is_alive() else []
        fleets = [*self._left, *([] if self._fleet is None else [self._fleet])]
        return [*closing, *(name for fleet in fleets for name in fleet.abandoned)]

    def perform(self, queued: QueuedEvaluation, request: EvalRequest) -> PlayedRounds:
        """Play an evaluation.

        Args:
            queued: has its weights by model id; those not named stay as they are. Ends with `Closed` if it is
                cancelled, which is looked at after each `wake`.
            request: the conditions.

        Raises:
            Closed: it was cancelled.
            WorkerLost: workers were lost more often than `retries`.
            WorkerLate: it took too long, or workers did not come up in time.
            PlacementFailed: there was no room for them.
            KeyError, ValueError, TypeError: weights that do not fit.
            Exception: what code of the user raised.
        """
        self._evaluations += 1
        options, played, ended = self._options, PlayedRounds(), None
        due = range(n := options.num_trajectories)
        with self._trying(lambda: queued.cancelled):
            self._assemble()
            before = self._held
            self._hold({**before, **queued.models})
            while ended is None:
                self.wanted = due.stop
                reports = self._ask("play", (self.asker, self._evaluations), due, request)
                if misfit := next((each.misfit for each in reports.values() if each.misfit is not None), None):
                    self._hold(before)
                    raise misfit
                for report in reports.values():
                    played.rows |= report.rows
                    played.reports.append(report)
                played.seconds += max(report.seconds for report in reports.values())
                returns = episodes_of(played.rows)["returns"]
                ended = "fixed" if request.per_slot else options.verdict(returns, request.seed)
                due = range(due.stop, due.stop + n)
            played.stopped, played.retries = ended, self._losses
            recorded = [worker for worker, report in reports.items() if report.records]
            try:
                for failures in self._ask("dump", request.step, options.dump_video, workers=recorded).values():
                    played.unwritten += failures
            except (FleetFailed, WorkerLost, WorkerLate) as error:
                played.unwritten.append(f"recorders did not come to an end: {error}")
        return played

    def look(self, queued: QueuedEvaluation) -> tuple[EvalRequest, PlayedRounds] | None:
        """Wait for the rollout that plays in a registered worker, whichever driver has asked for it.

        Args:
            queued: as in `perform`; has no weights.

        Returns:
            What was asked for and what came of it; `None` if nothing is played and all results were read.

        Raises:
            Exception: see `perform`.
        """
        with self._trying(lambda: queued.cancelled):
            self._assemble()
            report = self._ask("look")[0]
        if report.request is None:
            return None
        return report.request, PlayedRounds(dict(report.rows), seconds=report.seconds, reports=[report])

    def models(self) -> dict[str, dict[str, Any]]:
        """The state of the policy, and of other models that were sent weights, as the last evaluation had it.

        For the thread that calls `perform`, after it.

        Raises:
            WorkerLost: too few workers are left to fetch it.
            WorkerLate: it took longer than an evaluation may.
        """
        with self._trying():
            states: dict[str, Any] = self._ask("weights", [*{POLICY: None, **self._held}], workers=[0])[0]
            return states

    def wake(self) -> None:
        """Let `perform`, in another thread, look whether it is cancelled."""
        if (group := self._group) is not None:
            group.fleet.wake()

    def close(self, timeout: float, *, ends: bool = True) -> None:
        """Close the envs where they live and end the workers; what closing raised is logged. Also during `perform`.

        Args:
            timeout: in seconds.
            ends: whether a registered worker ends, too, for all drivers.
        """
        until = monotonic() + timeout
        with self._lock:
            self._closed, group = True, self._group
        try:
            if group is not None:
                fleet, asks = group.fleet, ends or self._registered is None
                with suppress(WorkerLate, WorkerLost, FleetFailed):  # what was joined is up, though this may be new
                    while ends and self._joins and not fleet.up and monotonic() < until:
                        group.wait((), lambda: False, group.news, until - monotonic())
                with suppress(KeyError):  # none was begun
                    for handle in map(fleet.handle, fleet.statuses()) if ends else ():
                        handle.outlives_backend = False
                for error in fleet.close(max(0.0, until - monotonic()), ask=asks):
                    _log.error(_RAISED, exc_info=error)
        finally:
            built, self._built = self._built, None
            if not (built is None or built.closed or built.turn.locked()):  # nobody has it, or nobody any more
                self._closing = threading.Thread(target=_close, args=[built], name="swath eval closes", daemon=True)
                self._closing.start()  # for it may hang
                self._closing.join(max(LEAST_S, until - monotonic()))

    # Who is there

    @contextmanager
    def _trying(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Ask workers within; whoever still answers at the end is waited for a moment, then ended."""
        self._stopped, self._losses, self._until = stopped, 0, monotonic() + self._options.timeout_s
        try:
            yield
        except FleetFailed as failure:
            raise failure.causes[-1] from None
        finally:
            self.complete = self.wanted = 0
            self.retries += min(self._losses, self._options.retries)
            if (group := self._group) is not None:
                group.drop()
                with suppress(WorkerLate):  # those are killed below
                    if asked := [request.ticket for request in group.out]:  # else the fleet may be closed
                        group.fleet.wait_for_all(asked, GRACE_S)
                for name in [request.name for request in group.out if not request.ticket.done]:
                    why = f"{name} was ended: it is stuck in code of the user"
                    group.replace(name, WorkerLost(why, worker=name.worker, life=name.life))
                group.sweep()

    def begin(self, allowed: Callable[[], None] = lambda: None) -> Fleet:
        """Begin a set of workers, and do not wait for them; `close` ends them from now on.

        Args:
            allowed: called when their place is there; if it raises, none is begun.
        """
        options = self._options
        # It may join a cluster, which takes seconds: `close` does not wait for that.
        bare = options.place != "thread" and options.init_fn is not None
        backend = create.backend(options.place, preload=PRELOADED, bare=bare)
        with self._lock:
            if self._closed:
                backend.close()
                raise Closed("the workers were shut down; build another evaluator")
            allowed()
            fleet = self._fleet = Fleet(backend, self._job, options.num_workers, options.survival)
            self._group = WorkerGroup(fleet, Channel(backend.share))
        fleet.process_events()
        if self._version:
            self._group.channel.publish(self._held, version=self._version)
        return fleet

    def _job(self, name: Name) -> Job:
        """How to bring up this life of this worker; one after another plays in envs that were handed in."""
        options, built = self._options, self._built
        if not options.lent:
            self._built = None
        build = partial(EvalWorker, self._theirs, self._root, name) if built is None else partial(built.enter, name)
        before, threads = None if options.place == "thread" else options.init_fn, options.settings.num_threads or 1
        public = () if self._registered is None else PUBLIC
        return Job(build, name, threads, before, options.resources, public, self._registered, self._joins)

    def _assemble(self) -> None:
        """Have the workers up; another set of them if too few are left of the last.

        Who died while nobody asked is replaced, and that counts as no loss.
        """
        if self.is_up and (fleet := self._fleet) is not None:
            with suppress(FleetFailed):
                self._ask("weights", (), spared=True)
            fleet.forgive()
            if (failure := fleet.failure) is None:
                return
            self._part_with(fleet)
            if fleet.backend_lost:
                raise failure.causes[-1]  # others are not begun elsewhere without a word
            self._earlier_restarts += self._options.num_workers
        fleet = self._fleet or self.begin()
        try:
            fleet.start()
        except BaseException as failed:
            self._part_with(fleet)
            if isinstance(failed, PlacementFailed):
                failed.add_note("ask for less (num_gpus=0, say), or free some; the next evaluation asks again")
            raise
        self.is_up, self._until = True, monotonic() + self._options.timeout_s

    def _part_with(self, fleet: Fleet) -> None:
        fleet.close(0.0)
        self._left = [each for each in (*self._left, fleet) if each.abandoned]
        self._earlier_restarts += fleet.restarts
        self._fleet, self._group, self.is_up = None, None, False

    # What they are asked

    def _hold(self, models: Mapping[str, Snapshot]) -> None:
        """Send these weights with the next request, and to lives to come; and no longer those of other models."""
        assert self._group is not None
        new = {model_id: one for model_id, one in models.items() if self._held.get(model_id) is not one}
        self._group.channel.withdraw(self._held.keys() - models.keys())
        if new:
            self._version = self._group.channel.publish(new)
        self._held = models

    def _ask(
        self, method: str, *args: Any, workers: Sequence[int] | None = None, spared: bool = False
    ) -> dict[int, Any]:
        """Replies of workers; whoever is lost is asked again in its next life, and who has a `Report` that is not over.

        Args:
            method: of `EvalWorker`.
            *args: its arguments.
            workers: which; `None` for all.
            spared: whether losses do not count.
        """
        group, timeout, replies = self._group, self._options.timeout_s, dict[int, Any]()
        assert group is not None
        asked = group.fleet.statuses() if workers is None else workers
        while left := [worker for worker in asked if not getattr(replies.get(worker), "over", worker in replies)]:
            seen, busy = group.news, {request.worker for request in group.wanted()}
            for worker in group.fleet.up.keys() & {*left} - busy:
                group.request(worker, method, *args)
            out = group.wanted()
            group.wait(out, self._stopped, seen, max(0.0, self._until - monotonic()))
            if self._stopped():
                raise Closed("the evaluation was cancelled")
            answered = [request for request in out if request.answered]
            if not answered and monotonic() >= self._until:
                if group.fleet.up.keys() >= {*left}:
                    late = tuple(sorted({request.worker for request in out}))
                    done = f"{self.complete} of {self.wanted} episodes complete, in {method}() of workers {left}"
                    way_out = "they are replaced where they are stuck; give more time, fewer episodes, or max_steps"
                    text = f"the evaluation took longer than timeout_s={timeout:g}, with {done}; {way_out}"
                    raise WorkerLate(text, workers=late, deadline=timeout)
                self._until = monotonic() + timeout  # who comes back has deadlines of its own
            for request in answered:
                group.settle(request)
                group.close(request)
                replies.pop(request.worker, None)
                if request.reply is not None:
                    replies[request.worker] = request.reply
                elif not spared:
                    self._lost(request)
            if method == "play":
                self.complete = sum(report.complete for report in replies.values())
        return replies

    def _lost(self, request: Request) -> None:
        """A worker died, or cannot take its weights: the deadline begins anew, unless that was once too often."""
        self._losses += 1
        if self._losses > self._options.retries:
            raise request.ticket.error or WorkerLost(f"{request.name} could not take its weights")
        self._until = monotonic() + self._options.timeout_s


def _close(worker: EvalWorker) -> None:
    if isinstance(closed := run_and_capture(worker.close), Failure):
        _log.error(_RAISED, exc_info=closed.exception)
