"""The workers of an evaluator, from one evaluation to the next: brought up, given weights, asked for their episodes.

    perform ─▶ workers there? ─▶ weights ─▶ a round, asked of every worker ─▶ … ─▶ Performed
                 ▲                            │ a reply that is not over: its worker is asked again
                 │                            └ a worker is lost: its next life is asked for the same
                 └── anew, if too few are left: no failure is final

Used by one thread, but for `wake` and `close`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any
from uuid import uuid4

from swath.errors import Closed, FleetFailed, PayloadLost, PlacementFailed, WorkerLate, WorkerLost
from swath.evaluation.jobs import PRELOADED, Jobs
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.request import EvalRequest
from swath.evaluation.result import Performed, Rounds
from swath.evaluation.weights import SentWeights
from swath.evaluation.worker import EvaluationId, Footage, Report
from swath.group.group import WorkerGroup
from swath.group.request import Request
from swath.rollout.hosts.torchrl import CREATOR, creator_apart
from swath.weights.channel import Channel
from swath.weights.snapshot import Snapshot
from swath.workers import create
from swath.workers.fleet import Fleet
from swath.workers.hosting import described
from swath.workers.outcome import Error, thawed
from swath.workers.packing import travels
from swath.workers.tickets import Received

travels(*CREATOR, creator_apart)

_log = logging.getLogger("swath")

GRACE_S = 1.0
"""How long a slice that nobody waits for any more may take before its worker counts as stuck."""

LEAST_S = 0.2
"""How long what no worker has closed may take to be closed, at least."""


class Cancelled(Exception):  # noqa: N818
    """An evaluation was stopped by its service. Stays inside the library."""


class EvalWorkers:
    """Workers that play evaluations one after another.

    Args:
        options: what they build, where they live, and how many they are.
        registered: name and namespace of the one worker, which then outlives its driver; on Ray.
        joins: another driver has begun that worker.

    Attributes:
        complete: how many episodes of the present evaluation are played.
        wanted: how many its rounds have so far.
        retries: how often a worker was asked again after one was lost.
        starting: whether workers are being brought up.
    """

    def __init__(
        self, options: EvaluatorOptions, registered: tuple[str, str] | None = None, *, joins: bool = False
    ) -> None:
        self._options, self._registered, self._joins = options, registered, joins
        self._jobs = Jobs(options, registered, joins=joins)
        self._fleet: Fleet | None = None
        self._group: WorkerGroup | None = None
        self._is_up = self._closed = False
        self._weights = SentWeights(options.schemes, self._first)
        self._stopped: Callable[[], bool] = lambda: False
        self._timeout_s = self._until = 0.0
        self._asker, self._evaluations = uuid4().hex, 0
        self._losses = self._earlier_restarts = 0
        self._earlier: list[Fleet] = []  # with workers that cannot be ended
        self._lock = threading.Lock()
        self.starting = False
        self.complete = self.wanted = self.retries = 0

    @property
    def restarts(self) -> int:
        """Lives that replaced others."""
        return self._earlier_restarts + (0 if self._fleet is None else self._fleet.restarts)

    @property
    def left_behind(self) -> list[str]:
        """What cannot be ended, since it is stuck: threads, by name."""
        fleets = [*self._earlier, *([] if self._fleet is None else [self._fleet])]
        return [*self._jobs.stuck, *(name for fleet in fleets for name in fleet.left_behind)]

    def __str__(self) -> str:
        """The phases of the workers in words."""
        return "gone" if self._fleet is None else ", ".join(each.phase for each in self._fleet.standings().values())

    def perform(self, request: EvalRequest, models: Mapping[str, Snapshot], stopped: Callable[[], bool]) -> Performed:
        """Play an evaluation.

        Args:
            request: the conditions.
            models: weights by model id; those not named stay as they are.
            stopped: asked after each `wake`; true ends it with `Cancelled`.

        Raises:
            Cancelled: `stopped` said so.
            WorkerLost: workers were lost more often than `retries`.
            WorkerLate: it took too long, or workers did not come up in time.
            PlacementFailed: there was no room for them.
            KeyError, ValueError, TypeError: weights that do not fit.
            Exception: what code of the user raised.
        """
        self.complete = self.wanted = 0
        self._evaluations = request.step if request.per_slot else self._evaluations + 1
        self._timeout_s = request.timeout_s
        footage, seconds = list[Footage](), 0.0
        with self._trying(stopped):
            self._assemble()
            if fitted := self._weights.fitted(models):
                self._publish(fitted)
            rounds = Rounds(asked := self._first("rollout", request) if request.per_slot else request)
            while rounds.stopped is None:
                self.wanted = rounds.due.stop
                reports = self._play(rounds.due, asked, footage)
                rounds.played({n: row for report in reports.values() for n, row in report.rows.items()})
                seconds += max(report.seconds for report in reports.values())
            losses, records = self._losses, [worker for worker, report in reports.items() if report.records]
            unwritten = self._dump(records, request.step, write=self._options.dump_video)
        first = reports[0]
        return Performed(asked, rounds, seconds, first.seeding, losses, footage, unwritten, first.version)

    def announce(self, number: int) -> None:
        """A rollout is about to be asked for: what the worker plays for others is given up now."""
        if (group := self._group) is not None:
            with suppress(Closed):
                group.send(group.to_all("begin", EvaluationId(self._asker, number)))

    def models(self) -> dict[str, dict[str, Any]]:
        """The state of the policy, and of other models that were sent weights, as the last evaluation had it.

        For the thread that calls `perform`, after it.

        Raises:
            WorkerLost: too few workers are left to fetch what was never sent.
            WorkerLate: it took longer than an evaluation may.
        """
        with self._trying(lambda: False):
            return self._weights.states()

    def wake(self) -> None:
        """Let `perform`, in another thread, ask whether it is stopped."""
        if (fleet := self._fleet) is not None:
            fleet.wake()

    def close(self, timeout: float, *, ends: bool = True) -> None:
        """Close the envs where they live and end the workers; what closing raised is logged. Also during `perform`.

        Args:
            timeout: in seconds.
            ends: whether a registered worker ends, too, for all drivers.
        """
        until = monotonic() + timeout
        with self._lock:
            self._closed, fleet, group = True, self._fleet, self._group
        try:
            if fleet is not None and group is not None:
                if ends and self._registered is not None:
                    self._end(group, timeout)
                asks = ends or self._registered is None
                for error in fleet.close(max(0.0, until - monotonic()), ask=asks):
                    _log.error("an env of an evaluation raised when it was closed", exc_info=error)
        finally:
            self._jobs.close(max(LEAST_S, until - monotonic()))

    def _end(self, group: WorkerGroup, timeout: float) -> None:
        """Close the registered worker, and have it end with this driver; others learn first that it is closed."""
        until = monotonic() + timeout
        fleet = group.fleet
        with suppress(WorkerLate, WorkerLost, FleetFailed):
            while self._joins and not fleet.up and monotonic() < until:  # what was joined is up, though this may be new
                group.wait((), lambda: False, group.news, until - monotonic())
            while any(group.answers(group.send(group.to_all("end", self._asker)), until - monotonic()).values()):
                pass
        for handle in map(fleet.handle, fleet.standings()):
            handle.lasts = False

    # Who is there

    @contextmanager
    def _trying(self, stopped: Callable[[], bool]) -> Iterator[None]:
        """Ask workers within; whoever still answers at the end is waited for a moment, then ended."""
        self._stopped, self._losses, self._until = stopped, 0, monotonic() + self._timeout_s
        try:
            yield
        except FleetFailed as failure:
            raise failure.causes[-1] from None
        finally:
            self.retries += min(self._losses, self._options.retries)
            if self._group is not None:
                self._let_go(self._group)

    def _let_go(self, group: WorkerGroup) -> None:
        group.drop()
        if not (asked := list(group.out)):
            return
        with suppress(WorkerLate):  # those are seen to below
            group.fleet.answers([request.ticket for request in asked], GRACE_S)
        for request in asked:
            if not request.ticket.done:
                name = request.name
                why = f"{described(name)} was ended: it is stuck in code of the user"
                group.replace(name, WorkerLost(why, worker=name.worker, life=name.life))
        group.sweep()

    def begin(self, allowed: Callable[[], None] | None = None) -> None:
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
            if allowed is not None:
                allowed()
            fleet = self._fleet = Fleet(backend, self._jobs, options.num_workers, options.survival)
            self._group, self._is_up = WorkerGroup(fleet, Channel(backend.share)), False
        fleet.look()
        if self._weights.held:
            self._publish(self._weights.held)

    def _publish(self, models: Mapping[str, Snapshot]) -> None:
        assert self._group is not None
        self._group.channel.publish(models)

    def _assemble(self) -> None:
        """Have the workers up; another set of them if too few are left of the last.

        Who died while nobody asked is replaced, and that counts as no loss.
        """
        if self._is_up and (fleet := self._fleet) is not None:
            missing = set(fleet.standings())
            with suppress(FleetFailed):
                while missing:
                    missing -= {answer.worker for answer in self._answers(missing, "present") if answer.reply}
            fleet.forgive()
            if (failure := fleet.failure) is None:
                return
            gone = fleet.place_gone
            fleet.close(0.0)
            self._part_with(fleet)
            if gone:
                raise failure.causes[-1]  # others are not begun elsewhere without a word
            self._earlier_restarts += self._options.num_workers
        self._bring_up()
        self._until = monotonic() + self._timeout_s

    def _bring_up(self) -> None:
        if self._fleet is None:
            self.begin()
        fleet = self._fleet
        assert fleet is not None
        self.starting = True
        try:
            fleet.bring_up()
        except BaseException as failure:
            self._part_with(fleet)
            if isinstance(failure, PlacementFailed):
                advice = "ask for less (num_gpus=0, say), wait longer, or free some; the next evaluation asks again"
                text = f"{failure}; {advice}"
                raise PlacementFailed(text, asked=failure.asked, available=failure.available) from None
            raise
        finally:
            self.starting = False
        self._is_up = True

    def _part_with(self, fleet: Fleet) -> None:
        """It is closed."""
        self._earlier = [each for each in (*self._earlier, fleet) if each.left_behind]
        self._earlier_restarts += fleet.restarts
        self._fleet = self._group = None
        self._is_up = False

    # What they are asked

    def _answers(self, workers: Collection[int], method: str, *args: Any) -> list[Request]:
        """Ask these workers, if they are up and not asked yet; who has answered, or died; none if others came or went.

        What is returned is to be closed.
        """
        group = self._group
        assert group is not None
        seen, asked = group.news, {request.worker for request in group.wanted()}
        for worker in group.fleet.up:
            if worker in workers and worker not in asked:
                group.request(worker, method, *args)
        out = group.wanted()
        group.wait(out, self._stopped, seen, max(0.0, self._until - monotonic()))
        if self._stopped():
            raise Cancelled
        answered = [request for request in out if request.answered]
        if not answered and monotonic() >= self._until:
            if group.fleet.up.keys() >= set(workers):
                raise self._late(method, sorted({request.worker for request in out}))
            self._until = monotonic() + self._timeout_s  # who comes back has deadlines of its own
        for request in answered:
            group.settle(request)
            if not isinstance(request.reply, Received):
                group.close(request)
        return answered

    def _first(self, method: str, *args: Any) -> Any:
        """The answer of any worker; where it is lost meanwhile another is asked, or its next life."""
        assert self._group is not None
        while True:
            for answer in self._answers([*self._group.fleet.up][:1], method, *args):
                if answer.reply is not None:
                    return answer.reply
                self._lost(answer)

    def _play(self, episodes: range, request: EvalRequest, footage: list[Footage]) -> dict[int, Report]:
        """Play a round; the last report of each worker."""
        assert self._group is not None
        workers, reports = self._group.fleet.standings(), dict[int, Report]()
        evaluation = EvaluationId(self._asker, self._evaluations)
        while left := [worker for worker in workers if worker not in reports or not reports[worker].over]:
            for answer in self._answers(left, "play", evaluation, episodes, request):
                reply = answer.reply
                if isinstance(reply, Received):
                    try:
                        footage.append(reply.open().kept())
                        reply = reply.head
                    except PayloadLost as lost:
                        self._lost(answer, lost)
                        reply = None
                    self._group.close(answer)
                elif reply is None:
                    self._lost(answer)
                reports.pop(answer.worker, None)
                if reply is not None:
                    reports[answer.worker] = reply
            self.complete = sum(report.complete for report in reports.values())
        return reports

    def _dump(self, workers: Collection[int], step: int, *, write: bool) -> list[str]:
        """After the last round: recorders in the envs let go of what they have seen; what went wrong, in words."""
        failures, left = list[str](), set(workers)
        try:
            while left:
                for answer in self._answers(left, "dump", step, write):
                    left.remove(answer.worker)
                    failures.extend([str(_cause(answer))] if answer.reply is None else answer.reply)
        except (FleetFailed, WorkerLate) as error:
            failures.append(f"recorders of workers {sorted(left)} did not come to an end: {error}")
        return failures

    def _lost(self, answer: Request, payload: PayloadLost | None = None) -> None:
        """A worker, or what it has sent, is lost: the deadline begins anew, unless that was once too often."""
        cause = payload or _cause(answer)
        self._losses += 1
        if self._losses > self._options.retries or not isinstance(cause, WorkerLost | PayloadLost):
            raise cause
        self._until = monotonic() + self._timeout_s

    def _late(self, method: str, late: list[int]) -> WorkerLate:
        doing = f"{method}() of workers {late}"
        if method == "play":
            doing = f"the evaluation, with {self.complete} of {self.wanted} episodes complete,"
        return WorkerLate(
            f"{doing} took longer than timeout_s={self._timeout_s:g}; workers {late} are ended where they are stuck, "
            "and replaced; give it more time, fewer episodes, or max_steps",
            workers=tuple(late),
            deadline=self._timeout_s,
        )


def _cause(answer: Request) -> BaseException:
    """Why there is no reply: its worker died, or refused the weights that came with the request."""
    outcome = answer.ticket.outcome
    assert outcome is not None
    return outcome.exception if isinstance(outcome, Error) else thawed(outcome.value.error)
