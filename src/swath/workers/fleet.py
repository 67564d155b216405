"""The workers of one service: restarts those that die, and fails when too few are left.

    start ─▶ up ─▶ call(handle, …) ─▶ Ticket ─▶ wait ─▶ settled tickets, or FleetFailed
                                                 │ meanwhile: deaths recorded, late workers killed, next lives started
                                                 └─ process_events (locked) ─▶ pause (unlocked) ─▶ process_events …

    process_events: events of lives, answers, clock ─▶ FleetState ─▶ due actions ─▶ spawn, kill, log

A pause ends with an answer, an event of a worker, or a due action; once a second it checks for Ctrl-C.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any, Literal, TypeAlias

from swath.errors import Closed, FleetFailed, PlacementFailed, SwathError, WorkerLate, WorkerLost, warn
from swath.options import Survival
from swath.workers.base import Backend, Handle, Job
from swath.workers.fleet_state import FleetState, WorkerStatus
from swath.workers.garbage import GarbageWatch
from swath.workers.tickets import Interrupted, Name, Ticket

LifeEvent: TypeAlias = Literal["ready", "died", "given up"]

_log = logging.getLogger("swath")


class Fleet:
    """Workers that are replaced when they die, by the threads that wait for them. Any thread may use it.

    Args:
        backend: owned by the fleet, which closes it at the end, or when the fleet is collected as garbage.
        make_job: returns the start-up data of a life. It must be quick and must not call the fleet.
        n: number of workers.
        survival: how often workers are replaced, how long they may take, how many are needed.
        clock: seconds, the same as of the backend's tickets.
        first: index of the first worker; the others follow.

    Attributes:
        survival: the argument.
        up: the workers that can be called, as far as is known, by index; a new mapping for every change.
        event_count: grows when a worker is up, dies, is given up or added.
        late: lives that were killed because they took too long.
        backend_lost: why no worker can live on the backend any more, or `None`.
        listener: called with each event of a life, and the cause of a death, by the thread that processes the event;
            it must not call the fleet.
    """

    def __init__(
        self,
        backend: Backend,
        make_job: Callable[[Name], Job],
        n: int,
        survival: Survival,
        clock: Callable[[], float] = time.monotonic,
        first: int = 0,
    ) -> None:
        self.survival = survival
        self.up: Mapping[int, Handle] = {}
        self.event_count = 0
        self.late: set[Name] = set()
        self.backend_lost: str | None = None
        self.listener: Callable[[LifeEvent, Name, BaseException | None], None] | None = None
        self._backend, self._make_job, self._clock = backend, make_job, clock
        self._state = FleetState(n, survival, first)
        self._events: deque[Handle] = deque()  # handles with events to process
        self._late_at = inf  # when to check for late calls
        self._handles: dict[int, Handle] = {}  # the last started life of each worker
        self._starting = self._closed = False
        self._build_error: BaseException | None = None  # the failure of a first life
        self._lock, self._adding, self._closing = threading.RLock(), threading.RLock(), threading.RLock()
        self._garbage = GarbageWatch(self, backend.close)

    @property
    def restarts(self) -> int:
        """Return the number of lives that replaced others."""
        return self._state.restarts

    @property
    def abandoned(self) -> tuple[str, ...]:
        """Return the names of workers that were killed but still run."""
        return self._backend.abandoned

    @property
    def failure(self) -> FleetFailed | None:
        """Return the error that ends the run if too few workers are left, else `None`."""
        state, min_workers = self._state, self.survival.min_workers
        if state.causes is None:
            return None
        needed = "all" if min_workers is None else f"min_workers={min_workers}"
        reasons = "; ".join(f"{type(cause).__name__}: {cause}" for cause in state.causes)
        return FleetFailed(
            f"{state.remaining} of {len(state.workers)} workers are left, and {needed} are needed; "
            f"the others ended: {reasons}",
            causes=state.causes,
        )

    def statuses(self) -> dict[int, WorkerStatus]:
        """Return each worker's life and phase, as far as is known."""
        return dict(self._state.workers)

    def handle(self, worker: int) -> Handle:
        """Return the last started life of a worker, which may be over; `KeyError` if there was none."""
        return self._handles[worker]

    # ---- membership

    def start(self) -> None:
        """Start all workers and wait until they can be called.

        If some are not ready after `placement_timeout_s` but `min_workers` are, they join later, with a warning.

        Raises:
            PlacementFailed, WorkerLate: too few were ready in time.
            FleetFailed: too few are left.
            Exception: building a worker raised it. In all cases nothing is left of the fleet.
        """
        state, limit, deadline = self._state, self.survival.start_timeout_s, self._deadline("placement_timeout_s")
        missing: list[Handle] = []

        def due() -> float:
            statuses = [state.workers[handle.name.worker] for handle in missing]
            ends = [status.since + limit if status.placed and limit else deadline for status in statuses]
            return min(ends, default=deadline)

        def all_up(_: Sequence[Ticket]) -> bool:
            if (failure := self.failure if self._build_error is None else self._build_error) is not None:
                raise failure
            missing[:] = [self._handles[worker] for worker in state.workers if state.comes_back(worker)]
            return not missing

        with ExitStack() as undo:
            undo.callback(self.close, 0.0)
            self._starting = True
            self._wait_until(all_up, (), due)
            self._starting = False
            if missing:
                late = self._start_error(missing, len(state.workers))
                if len(self.up) < state.required:
                    raise late
                warn(f"{late}; the others begin without them")
            undo.pop_all()

    def add(self, n: int, accept: Callable[[Sequence[Handle]], None] | None = None) -> None:
        """Add workers, whose indices follow the others', and wait until they can be called.

        Args:
            n: number of workers.
            accept: called with their handles before they are added; if it raises, none is added.

        Raises:
            PlacementFailed, WorkerLate: they were not ready in time.
            Exception: building them raised it, or `WorkerLost`. In all cases none is added.
        """
        handles: list[Handle] = []

        def all_up(built: Sequence[Ticket]) -> bool:
            for ticket in built:
                _ = ticket.value  # raises the exception of `build`
            return len(built) == n

        with self._adding, ExitStack() as undo:
            for worker in range(self._state.next_index, self._state.next_index + n):
                handles.append(self._backend.spawn(self._make_job(Name(worker, 0))))
                undo.callback(self._backend.kill, handles[-1])
            deadline = self._deadline("placement_timeout_s")
            if self._wait_until(all_up, [handle.ready for handle in handles], lambda: deadline) is None:
                raise self._start_error([handle for handle in handles if not handle.ready.done], n)
            if accept is not None:
                accept(handles)
            undo.pop_all()
            with self._locked():
                for handle in handles:
                    self._handles[handle.name.worker] = handle
                    self._state.added(self._clock())
                    self._refresh()
                    self._watch(handle)

    def replace(self, name: Name, cause: BaseException) -> None:
        """Kill one life of a worker and count its death, unless that life is over."""
        with self._locked():
            self._record_death(name, cause)

    def retire(self, worker: int) -> None:
        """Kill a worker for good, without counting a death. A second call does nothing."""
        with self._locked():
            if (handle := self._handles.get(worker)) is not None:
                self._backend.kill(handle)
            self._state.retired(worker, self._clock())
            self._refresh()

    def forgive(self) -> None:
        """Stop counting the restarts so far against `survival.restarts`; workers that were given up stay so."""
        with self._locked():
            self._state.forgive()

    def process_events(self) -> None:
        """Process events of workers and do due actions, without waiting; raise `Closed` after the end and in a fork."""
        self._backend.owner.require_here("these workers")
        with self._locked():
            self._require_open()
            while self._events:
                self._process_event(self._events[0])
                self._events.popleft()  # afterwards, since Ctrl-C may come in between
            if self._clock() >= self._late_at:
                self._kill_late(self._clock())

    def wake(self) -> None:
        """Wake waiting threads, so that they check whether they are interrupted."""
        self._backend.wake()

    def close(self, timeout: float = 10.0, *, ask: bool = True) -> list[BaseException]:
        """Close the workers, kill those left after `timeout` seconds, and return the errors that closing raised.

        Other methods raise `Closed` from now on. Twice is fine; a second thread waits for the first. A fork of the
        process that started the workers does nothing.

        Args:
            timeout: time limit in seconds.
            ask: whether to call the workers' `close`.
        """
        if not self._backend.owner.is_here:
            return []
        with self._closing:
            if self._closed:
                return []
            with self._locked():
                self._closed = True
                self.event_count += 1
            try:
                deadline, handles = self._clock() + timeout, self.up.values() if ask and timeout > 0 else ()
                tickets = [self._backend.call(handle, "close") for handle in handles]
                while (missing := [ticket for ticket in tickets if not ticket.done]) and self._clock() < deadline:
                    self._backend.wait(missing, deadline - self._clock())
            finally:
                self._backend.close()
                self._garbage.end()
        errors = [ticket.error for ticket in tickets]
        return [error for error in errors if error is not None and not isinstance(error, WorkerLost)]

    # ---- calls

    def call(self, handle: Handle, method: str, *args: Any, timed: bool = False) -> Ticket:
        """Send a call to one life of a worker and return at once; it answers one call after another.

        Args:
            handle: a handle of `up`. If that life is over the answer is `WorkerLost`.
            method: name of a method of the worker.
            *args: arguments of the method; `TypeError` if one cannot be pickled.
            timed: whether the worker is killed when the call takes longer than `fragment_timeout_s`, counted from the
                end of its older calls.
        """
        self._require_open()
        ticket = self._backend.call(handle, method, *args)
        if timed:
            with self._lock:
                ticket.timed, due_at = True, ticket.sent + (self.survival.fragment_timeout_s or inf)
                if due_at < self._late_at:
                    self._late_at = due_at
                    self._backend.wake()
        return ticket

    def wait(
        self,
        tickets: Sequence[Ticket],
        timeout: float | None = None,
        interrupted: Interrupted | None = None,
        known_events: int | None = None,
    ) -> list[Ticket]:
        """Wait for an answer, or for an event of a worker, and keep the workers alive meanwhile.

        Args:
            tickets: tickets of calls; may be empty.
            timeout: time limit in seconds; `None` for none.
            interrupted: called after each `wake`; true ends the wait. It must not call the fleet.
            known_events: the caller's last `event_count`; later events end the wait. The present one by default.

        Returns:
            The settled tickets, in the order of the argument; none if the wait ended for another reason. Tickets of
            dead workers are settled with `WorkerLost`.

        Raises:
            FleetFailed: too few workers are left, and no ticket is settled.
        """
        last_event = self.event_count if known_events is None else known_events
        deadline = inf if timeout is None else self._clock() + timeout

        def is_over(done: Sequence[Ticket]) -> bool:
            if not done and (failure := self.failure) is not None:
                raise failure
            return bool(done) or self.event_count != last_event

        return self._wait_until(is_over, tickets, lambda: deadline, interrupted) or []

    def wait_for_all(self, tickets: Sequence[Ticket], timeout: float | None = None) -> None:
        """Wait until all tickets are settled, even if too few workers are left; dead ones answer with `WorkerLost`.

        Raises:
            WorkerLate: some are not settled after `timeout` seconds, `fragment_timeout_s` by default.
        """
        deadline = self._deadline("fragment_timeout_s") if timeout is None else self._clock() + timeout
        if self._wait_until(lambda done: len(done) == len(tickets), tickets, lambda: deadline) is None:
            limit = self.survival.fragment_timeout_s if timeout is None else timeout
            missing = [ticket for ticket in tickets if not ticket.done]
            workers = tuple(sorted({ticket.name.worker for ticket in missing}))
            reason = f"have not answered {missing[0].method}() within {limit} s; they go on with it"
            raise WorkerLate(f"workers {list(workers)} {reason}", workers=workers, deadline=limit)

    def wait_until_back(self, workers: Sequence[int]) -> None:
        """Wait until each worker can be called or is given up.

        Raises:
            WorkerLate: some are still coming back after `fragment_timeout_s`.
        """
        deadline, comes_back = self._deadline("fragment_timeout_s"), self._state.comes_back
        if self._wait_until(lambda _: not any(map(comes_back, workers)), (), lambda: deadline) is None:
            late, limit = tuple(filter(comes_back, workers)), self.survival.fragment_timeout_s
            reason = f"did not restart within {limit} s; set fragment_timeout_s to wait longer"
            raise WorkerLate(f"workers {list(late)} {reason}", workers=late, deadline=limit)

    def __repr__(self) -> str:
        """Return a status line."""
        phases = Counter(status.phase for status in self.statuses().values())
        counts = [f"{phases[phase]} {phase}" for phase in ("up", "starting", "waiting", "gone") if phase in phases]
        return f"<Fleet {phases.total()} workers: {'closed' if self._closed else ', '.join(counts)}>"

    # ---- waiting

    def _wait_until(
        self,
        goal: Callable[[Sequence[Ticket]], bool],
        tickets: Sequence[Ticket],
        deadline: Callable[[], float],
        interrupted: Interrupted | None = None,
    ) -> list[Ticket] | None:
        """Process events and wait until the goal is reached; return the settled tickets, `None` after the deadline.

        Args:
            goal: called with the settled tickets after events are processed; an exception ends the wait.
            tickets: tickets of calls; each answer is a reason to process events.
            deadline: returns a reading of the clock.
            interrupted: true ends the wait.
        """
        while True:
            done = [ticket for ticket in tickets if ticket.done]
            self.process_events()  # afterwards, so that the deaths that settled some are known
            last_event = self.event_count
            open_tickets = [ticket for ticket in tickets if not ticket.done]
            if len(done) + len(open_tickets) < len(tickets):
                continue
            if goal(done):
                return done
            now, latest = self._clock(), deadline()
            if now >= latest or (interrupted is not None and interrupted()):
                return None
            due = min(latest, self._state.due_at, self._late_at)

            def is_over() -> bool:
                has_event = bool(self._events) or self.event_count != last_event or self._late_at < due  # noqa: B023  within
                return has_event or (interrupted is not None and interrupted())

            self._backend.wait(open_tickets, max(0.0, due - now), is_over)

    def _deadline(self, setting: str) -> float:
        limit: float | None = getattr(self.survival, setting)
        return inf if limit is None else self._clock() + limit

    # ---- events of lives; all of it within `_locked`

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the workers were shut down; build new ones")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, do due actions at the end, and wake waiting threads if a worker has changed."""
        with self._lock:
            before = self.event_count
            try:
                yield
                if not self._closed:
                    self._do_due_actions()
            finally:
                if self.event_count != before:
                    self._backend.wake()

    def _refresh(
        self, event: LifeEvent | None = None, name: Name | None = None, cause: BaseException | None = None
    ) -> None:
        """Update which workers can be called, and pass an event to the listener."""
        if self.listener is not None and event is not None and name is not None:
            self.listener(event, name, cause)
        self.event_count += 1
        workers = self._state.workers
        self.up = {worker: handle for worker, handle in self._handles.items() if workers[worker].phase == "up"}

    def _watch(self, handle: Handle) -> None:
        """Receive the events of a life from now on; it may have had some already."""
        handle.events = self._events
        self._events.append(handle)

    def _process_event(self, handle: Handle) -> None:
        """Record the event of a life that is not known to be over."""
        name = handle.name
        if not self._state.is_alive(name) or self._handles[name.worker] is not handle:
            return
        status, build_error = self._state.workers[name.worker], handle.ready.error
        cause = handle.ended.error if build_error is None else build_error
        if self._starting and build_error is not None and not isinstance(build_error, WorkerLost):
            self._build_error = build_error
        elif cause is not None:
            self._record_death(name, cause)
        elif handle.ready.done and status.phase == "starting":
            self._state.ready(name, self._clock())
            self._refresh("ready", name)
            _log.info("%s is up", name)
        elif handle.placed.done and status.phase == "starting" and not status.placed:
            self._state.placed(name, self._clock())

    def _record_death(self, name: Name, cause: BaseException) -> None:
        state = self._state
        if not state.is_alive(name):
            return
        handle = self._handles.get(name.worker)
        if handle is not None and handle.name == name:
            self._backend.kill(handle)
        if (lost := self._backend.unusable_reason) is not None:
            self.backend_lost = lost
            cause = WorkerLost(f"{cause}; {lost}", worker=name.worker, life=name.life)
            for handle in self._handles.values():
                self._backend.kill(handle)
        state.died(name, cause, self._clock(), last=lost is not None)
        self._refresh("died", name, cause)
        if state.workers[name.worker].phase == "gone":
            self._refresh("given up", name)
        failed = f"{name} failed: {type(cause).__name__}: {cause}"
        _log.warning("%s; %s", cause if isinstance(cause, SwathError) else failed, self._next_step(name.worker))

    def _kill_late(self, now: float) -> None:
        """Kill workers that have taken too long with a call, counted from the end of their older calls."""
        calls = [(handle, *call) for handle in self.up.values() if (call := handle.oldest_call()) is not None]
        limit = self.survival.fragment_timeout_s or inf
        self._late_at = min((since for _, _, since in calls), default=inf) + limit
        for handle, method, since in calls:
            if since + limit <= now:
                self.late.add(name := handle.name)
                reason = f"{method}() took longer than {self.survival.describe('fragment_timeout_s')}"
                error = WorkerLost(f"{name} was killed: {reason}", worker=name.worker, life=name.life)
                self._record_death(name, error)

    def _do_due_actions(self) -> None:
        """Start waiting lives and end late ones; actions that an interrupt leaves undone stay due."""
        state, now = self._state, self._clock
        if state.due_at > now():
            return
        late = state.due("starting", now())
        if waiting := [name for name in late if state.waits_for_room(name)]:
            needed, free = self._backend.describe_resources(self._handles[waiting[0].worker])
            workers = ", ".join(str(name.worker) for name in waiting)
            _log.warning("workers %s wait for room: each asks for %s; there is %s", workers, needed, free)
        for name in late:
            if name in waiting:
                state.started(name, now())
            else:
                self._record_death(name, self._start_error([self._handles[name.worker]], len(state.workers)))
        while names := state.due("waiting", now()):
            for name in names:
                self._spawn(name)

    def _spawn(self, name: Name) -> None:
        try:
            self._handles[name.worker] = self._backend.spawn(self._make_job(name))
        except Exception as error:
            if self._starting:
                raise
            self._state.started(name, self._clock())
            self._record_death(name, error)
        else:
            self._state.started(name, self._clock())
            self._watch(self._handles[name.worker])

    def _start_error(self, handles: Sequence[Handle], n: int) -> SwathError:
        """Return the error for lives, of `n`, that were not ready in time: they have no room, or take too long."""
        limit, describe = self.survival.start_timeout_s, self.survival.describe
        late = [handle for handle in handles if limit is None or not handle.placed.done] or handles
        workers = tuple(handle.name.worker for handle in late)
        subject = f"{len(late)} of {n} workers ({', '.join(map(str, workers))}) were not ready"
        if limit is not None and late[0].placed.done:
            message = f"{subject} {describe('start_timeout_s')} after they were placed, and were ended"
            return WorkerLate(message, workers=workers, deadline=limit)
        needed, free = self._backend.describe_resources(late[0])
        message = f"{subject} after {describe('placement_timeout_s')}: each asks for {needed}; there is {free}"
        return PlacementFailed(f"{message}; use fewer workers, or make room", asked=needed, available=free)

    def _next_step(self, worker: int) -> str:
        status, limits = self._state.workers[worker], self.survival.restarts
        if status.phase == "gone":
            return f"it is given up after {status.restarts} restarts; {self._state.remaining} workers are left"
        delay = limits.delay(status.restarts)
        delay_text = f"in {delay:g} s" if delay else "at once"
        return f"life {status.life} begins {delay_text} (restart {status.restarts} of {limits.max_per_worker})"
