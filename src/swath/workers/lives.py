"""The lives of a fleet's workers: what has become of them is reported to the state, what it asks for is done.

    tickets, clock ─▶ notice ─▶ Placed, Ready, Died, Ticked ─▶ FleetState ─▶ Start, Overdue, Fail ─▶ spawn, kill, log

Nothing here waits. Whatever changes a life is done within `_changing`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import TypeAlias

from swath.errors import Closed, FleetFailed, PlacementFailed, SwathError, WorkerLate, WorkerLost
from swath.options import Survival
from swath.workers import fleet_state
from swath.workers.base import Backend, Handle, Job
from swath.workers.fleet_state import FleetState
from swath.workers.hosting import described
from swath.workers.tickets import Name, Ticket


class Lateness:
    """Calls to all workers, and which are late.

    Args:
        patience: seconds that a call may take; `None` for any time.

    Attributes:
        due_at: when to look for late ones, at the latest; seconds of `time.monotonic`.
    """

    def __init__(self, patience: float | None) -> None:
        self.due_at = inf
        self._patience = inf if patience is None else patience
        self._calls: dict[Name, deque[tuple[Ticket, bool]]] = {}  # oldest first, with whether they are timed
        self._free: dict[Name, float] = {}  # since when there has been nothing older to do

    def begun(self, name: Name, since: float) -> None:
        """A worker is up, and can begin with what it was asked before."""
        self._free[name] = since
        self.due_at = min(self.due_at, since + self._patience)

    def called(self, ticket: Ticket, *, timed: bool) -> None:
        """A call was sent."""
        self.answered(ticket.name)
        self._calls.setdefault(ticket.name, deque()).append((ticket, timed))
        if timed:
            self.due_at = min(self.due_at, ticket.sent + self._patience)

    def answered(self, name: Name) -> None:
        """Let go of answered calls of a worker."""
        calls = self._calls.get(name)
        while calls and (settled := calls[0][0].settled) is not None:
            self._free[name] = settled
            calls.popleft()

    def ended(self, name: Name) -> None:
        """A life is over, and nobody late any more."""
        self._calls.pop(name, None)
        self._free.pop(name, None)

    def late(self, now: float) -> list[Ticket]:
        """The calls that have taken too long."""
        begun = {}
        for name, calls in self._calls.items():
            self.answered(name)
            if any(timed for _, timed in calls):
                ticket, _ = calls[0]
                begun[ticket] = max(ticket.sent, self._free.get(name, inf))
        self.due_at = min(begun.values(), default=inf) + self._patience
        return [ticket for ticket, since in begun.items() if since + self._patience <= now]


MakeJob: TypeAlias = Callable[[Name], Job]
News: TypeAlias = fleet_state.Ready | fleet_state.Died | fleet_state.GiveUp

_log = logging.getLogger("swath")


class Lives:
    """Workers that are replaced when they die, whenever somebody looks. Any thread may.

    Args:
        backend: where they live; the fleet's own from now on.
        make_job: how a life is begun; called for each anew. It must be quick and leave the fleet alone.
        n: how many workers.
        survival: how often they are replaced, how long they may take, how many are needed.
        clock: seconds, the same as of the backend's tickets.
        first: the index of the first worker; the others follow.

    Attributes:
        survival: as it was given.
        up: the workers that can be called, as far as is known, by index; a new mapping whenever that changes.
        changes: counts news: workers that are up, have died, were given up or added.
        late: lives that were ended because they took too long.
        place_gone: why no worker can live any more where these did, in words, if their whole place has gone.
        listener: called with what becomes of workers, by whoever looks after them; must leave the fleet alone.
    """

    def __init__(
        self,
        backend: Backend,
        make_job: MakeJob,
        n: int,
        survival: Survival,
        clock: Callable[[], float] = time.monotonic,
        first: int = 0,
    ) -> None:
        self.survival = survival
        self.up: Mapping[int, Handle] = {}
        self.changes = 0
        self.late: set[Name] = set()
        self.place_gone: str | None = None
        self.listener: Callable[[News], None] | None = None
        self._backend, self._make_job, self._clock = backend, make_job, clock
        self._state = FleetState(n, survival, first)
        self._lateness = Lateness(survival.fragment_timeout_s)
        self._handles: dict[int, Handle] = {}  # the last life of each worker that was begun
        self._todo: deque[fleet_state.Instruction] = deque()
        self._watched: list[Ticket] = []  # their outcome is news
        self._stirs = self._seen_at = 0  # counts what those who wait must look at
        self._bringing_up = self._closed = False
        self._refused: BaseException | None = None  # what building a first life has raised
        self._causes: tuple[BaseException, ...] | None = None
        self._lock, self._adding, self._closing = threading.RLock(), threading.RLock(), threading.RLock()

    @property
    def restarts(self) -> int:
        """Lives that replace others."""
        return self._state.restarts

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What lives are called that are over but cannot be ended."""
        return self._backend.left_behind

    @property
    def failure(self) -> FleetFailed | None:
        """What ends the run, if too few are left."""
        if self._causes is None:
            return None
        state, least = self._state, self.survival.min_workers
        needed = "all" if least is None else f"min_workers={least}"
        why = "; ".join(f"{type(cause).__name__}: {cause}" for cause in self._causes)
        return FleetFailed(
            f"{state.left} of {len(state.workers)} workers are left, and {needed} are needed; the others ended: {why}",
            causes=self._causes,
        )

    def standings(self) -> dict[int, fleet_state.Standing]:
        """Each worker's life and phase, as far as is known."""
        return dict(self._state.workers)

    def handle(self, worker: int) -> Handle:
        """The last life of a worker that was begun; over, perhaps. `KeyError` if there was none."""
        return self._handles[worker]

    def look(self, answered: Sequence[Ticket] = ()) -> None:
        """Take note of what has happened and do what is due, without waiting; `Closed` after the end.

        Args:
            answered: calls that are; those of workers that have died say so.
        """
        with self._changing():
            self._require_open()
            self._notice(answered)

    def replace(self, handle: Handle, cause: BaseException) -> None:
        """Kill one life of a worker, which counts as its death; nothing if it is over."""
        with self._changing():
            self._note_death(handle.name, cause)

    def retire(self, worker: int) -> None:
        """Kill a worker that is to have no further life; that counts against nobody. Twice is fine."""
        with self._changing():
            if (handle := self._handles.get(worker)) is not None:
                self._kill(handle)
            self._report(fleet_state.Retired(worker))

    def forgive(self) -> None:
        """Restarts so far count no longer against `survival.restarts`; workers that were given up stay so."""
        with self._changing():
            self._report(fleet_state.Forgiven())

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the workers were shut down; build another collector or evaluator")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One thread at a time; when something has changed, what is due is done, and those who wait look again."""
        with self._lock:
            before = self._stirs
            try:
                yield
                self._carry_out()
            finally:
                if self._stirs != before:
                    self._backend.wake()

    def _notice(self, answered: Sequence[Ticket]) -> None:
        if any(ticket.done for ticket in self._watched):
            for handle in self._living():
                self._look_at(handle)
        for ticket in answered:
            if isinstance(error := ticket.error, WorkerLost):
                self._note_death(ticket.name, error)
            self._lateness.answered(ticket.name)
        now = self._clock()
        if now >= self._lateness.due_at:
            for ticket in self._lateness.late(now):
                self.late.add(name := ticket.name)
                why = f"{ticket.method}() took longer than {self.survival.said('fragment_timeout_s')}"
                error = WorkerLost(f"{described(name)} was killed: {why}", worker=name.worker, life=name.life)
                self._note_death(name, error)
        if now >= self._state.due_at:
            self._report(fleet_state.Ticked())

    def _living(self) -> list[Handle]:
        return [handle for handle in self._handles.values() if self._state.lives(handle.name)]

    def _look_at(self, handle: Handle) -> None:
        name, standing = handle.name, self._state.workers[handle.name.worker]
        refusal = handle.ready.error
        cause = handle.ended.error if refusal is None else refusal
        if self._bringing_up and refusal is not None and not isinstance(refusal, WorkerLost):
            self._refused = refusal
        elif cause is not None:
            self._note_death(name, cause)
        elif handle.ready.done and standing.phase == "starting":
            self._lateness.begun(name, self._clock())
            self._report(fleet_state.Ready(name))
            _log.info("%s is up", described(name))
        elif handle.placed.done and standing.phase == "starting" and not standing.placed:
            self._report(fleet_state.Placed(name))

    def _note_death(self, name: Name, cause: BaseException) -> None:
        if not self._state.lives(name):
            return
        handle = self._handles.get(name.worker)
        if handle is not None and handle.name == name:
            self._kill(handle)
        self._report(fleet_state.Died(name, cause))
        if (gone := self._backend.gone) is not None:
            self.place_gone = gone
            for handle in self._living():
                self._kill(handle)
            self._report(fleet_state.PlaceGone(WorkerLost(f"the workers are lost: {gone}")))
        failed = f"{described(name)} failed: {type(cause).__name__}: {cause}"
        _log.warning("%s; %s", cause if isinstance(cause, SwathError) else failed, self._what_next(name.worker))

    def _kill(self, handle: Handle) -> None:
        self._backend.kill(handle)
        self._lateness.ended(handle.name)

    def _report(self, event: fleet_state.Event) -> None:
        self._todo.extend(self._state.handle(event, self._clock()))
        self._stirs += 1
        if isinstance(event, fleet_state.Ticked | fleet_state.Placed):
            return
        if self.listener is not None and isinstance(event, fleet_state.Ready | fleet_state.Died):
            self.listener(event)
        self.changes += 1
        workers = self._state.workers
        self.up = {worker: handle for worker, handle in self._handles.items() if workers[worker].phase == "up"}

    def _carry_out(self) -> None:
        """Do what was asked for; what an interrupt leaves undone is done the next time."""
        while self._todo and not self._closed:
            self._do(self._todo[0])
            self._todo.popleft()
        if self._seen_at != self._stirs:
            self._seen_at = self._stirs
            self._watched = [ticket for handle in self._living() for ticket in self._news_of(handle)]

    def _news_of(self, handle: Handle) -> tuple[Ticket, ...]:
        standing = self._state.workers[handle.name.worker]
        if standing.phase == "up":
            return (handle.ended,)
        return (handle.ready, handle.ended) if standing.placed else (handle.placed, handle.ready, handle.ended)

    def _do(self, instruction: fleet_state.Instruction) -> None:
        match instruction:
            case fleet_state.Start(name) if self._state.lives(name):
                try:
                    self._handles[name.worker] = self._backend.spawn(self._make_job(name))
                except Exception as error:
                    if self._bringing_up:
                        raise
                    self._note_death(name, error)
            case fleet_state.Overdue(name):
                self._note_death(name, self._not_ready([self._handles[name.worker]], len(self._state.workers)))
            case fleet_state.NoRoom(names):
                asked, free = self._backend.room(self._handles[names[0].worker])
                workers = ", ".join(str(name.worker) for name in names)
                _log.warning("workers %s wait for room: each asks for %s; there is %s", workers, asked, free)
            case fleet_state.GiveUp() if self.listener is not None:
                self.listener(instruction)
            case fleet_state.Fail(causes):
                self._causes = causes

    def _not_ready(self, handles: Sequence[Handle], n: int) -> SwathError:
        """Of `n` lives these were not ready in time: there was no room, or building them takes too long."""
        patience, said = self.survival.start_timeout_s, self.survival.said
        late = [handle for handle in handles if patience is None or not handle.placed.done] or handles
        workers = tuple(handle.name.worker for handle in late)
        who = f"{len(late)} of {n} workers ({', '.join(map(str, workers))}) were not ready"
        if patience is not None and late[0].placed.done:
            why = f"{who} {said('start_timeout_s')} after they were placed, and were ended"
            return WorkerLate(why, workers=workers, deadline=patience)
        asked, free = self._backend.room(late[0])
        why = f"{who} after {said('placement_timeout_s')}: each asks for {asked}; there is {free}"
        return PlacementFailed(f"{why}; use fewer workers, or make room", asked=asked, available=free)

    def _what_next(self, worker: int) -> str:
        standing, most = self._state.workers[worker], self.survival.restarts
        if standing.phase == "gone":
            left = "1 worker is" if self._state.left == 1 else f"{self._state.left} workers are"
            return f"it is given up after {standing.restarts} restarts; {left} left"
        delay = most.delay(standing.restarts)
        when = f"in {delay:g} s" if delay else "at once"
        return f"life {standing.life} begins {when} (restart {standing.restarts} of {most.max_per_worker})"
