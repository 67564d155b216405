"""Carries out what a fleet's state asks for, and tells it what has become of the workers.

    tickets, clock ─▶ look ─▶ Ready, Died, Ticked ─▶ FleetState ─▶ Start, Overdue, Fail ─▶ spawn, kill, log

Nothing here waits. One thread at a time: the fleet has the lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from swath.errors import PlacementFailed, SwathError, WorkerLate, WorkerLost
from swath.options import Survival
from swath.workers.base import Backend, Handle, Job
from swath.workers.fleet_state import (
    FIRST,
    Added,
    Died,
    Event,
    Fail,
    FleetState,
    Forgiven,
    GiveUp,
    Instruction,
    Overdue,
    Placed,
    Ready,
    Retired,
    Start,
    Ticked,
)
from swath.workers.hosting import described
from swath.workers.lateness import Lateness
from swath.workers.outcome import Error
from swath.workers.tickets import Name, Ticket

MakeJob: TypeAlias = Callable[[Name], Job]
Listener: TypeAlias = Callable[[Ready | Died | GiveUp], None]
"""Hears what becomes of workers; must be quick and leave the fleet alone."""

_log = logging.getLogger("swath")


class Lives:
    """The lives of a fleet's workers.

    Args:
        backend: where they are lived.
        make_jobs: how each worker is brought up, each time anew.
        survival: how often, and how many are needed.
        clock: seconds, the same as of tickets.
        first: the name of the first worker.

    Attributes:
        state: who lives, who comes back and when.
        handles: the last life of each worker that was begun.
        up: who can be called; a new mapping whenever that changes.
        watched: tickets whose outcome is news here.
        changes: counts news of workers: up, dead, added.
        stirs: counts what those who wait must look at.
        late: lives that were ended because they took too long.
        listener: hears what becomes of workers.
        causes: why the fleet has failed; `None` if it has not.
        placing: whether somebody waits for the first lives, who is to hear what their builders raise.
        refused: what one of these has raised.
    """

    def __init__(
        self,
        backend: Backend,
        make_jobs: Sequence[MakeJob],
        survival: Survival,
        clock: Callable[[], float],
        first: Name = FIRST,
    ) -> None:
        self.state = FleetState(len(make_jobs), survival, first)
        self.handles: dict[int, Handle] = {}
        self.up: Mapping[int, Handle] = {}
        self.watched: list[Ticket] = []
        self.changes = self.stirs = 0
        self.late: list[Name] = []
        self.listener: Listener | None = None
        self.causes: tuple[BaseException, ...] | None = None
        self.placing = False
        self.refused: BaseException | None = None
        self._backend = backend
        self._make_jobs = dict(enumerate(make_jobs, first.worker))
        self._survival = survival
        self._clock = clock
        self._lateness = Lateness(survival.fragment_timeout_s)
        self._todo: deque[Instruction] = deque()
        self._seen_at = 0

    @property
    def due_at(self) -> float:
        """When to look again, at the latest."""
        return min(self.state.due_at, self._lateness.due_at)

    def look(self, tickets: Iterable[Ticket] = ()) -> None:
        """Take note of what has happened, and do what is due.

        Args:
            tickets: of calls, whose outcome may tell of a death.
        """
        if any(ticket.done for ticket in self.watched):
            for handle in self._living():
                self._look_at(handle)
        for ticket in tickets:
            if isinstance(error := _error(ticket), WorkerLost):
                self._note_death(ticket.name, error)
        now = self._clock()
        if now >= self._lateness.due_at:
            for ticket in self._lateness.late(now):
                self._end_late(ticket)
        if now >= self.state.due_at:
            self._tell(Ticked())
        self._carry_out()

    def called(self, ticket: Ticket, *, timed: bool) -> None:
        """A call was sent."""
        before = self._lateness.due_at
        if self.state.lives(ticket.name):
            self._lateness.called(ticket, timed=timed)
        if self._lateness.due_at < before:
            self.stirs += 1

    def answered(self, tickets: Iterable[Ticket]) -> None:
        """These answers were taken note of."""
        for ticket in tickets:
            self._lateness.answered(ticket)

    def end(self, name: Name, cause: BaseException) -> None:
        """A life is over, whatever its worker thinks; nothing if it was over before."""
        self._note_death(name, cause)
        self._carry_out()

    def adopt(self, handle: Handle, make_job: MakeJob) -> None:
        """One worker more, that is up already."""
        self.handles[handle.name.worker] = handle
        self._make_jobs[handle.name.worker] = make_job
        self._lateness.begun(handle.name, self._clock())
        self._tell(Added())
        self._carry_out()

    def retire(self, worker: int) -> None:
        """A worker is to have no further life."""
        if (handle := self.handles.get(worker)) is not None:
            self._backend.kill(handle)
            self._lateness.ended(handle.name)
        self._tell(Retired(worker))
        self._carry_out()

    def forgive(self) -> None:
        """Restarts so far count against nobody."""
        self._tell(Forgiven())
        self._carry_out()

    def _living(self) -> list[Handle]:
        return [handle for handle in self.handles.values() if self.state.lives(handle.name)]

    def _look_at(self, handle: Handle) -> None:
        refusal = _error(handle.ready)
        cause = _error(handle.ended) if refusal is None else refusal
        if self.placing and refusal is not None and not isinstance(refusal, WorkerLost):
            self.refused = refusal
        elif cause is not None:
            self._note_death(handle.name, cause)
        elif handle.ready.done and not self._is_up(handle):
            self._lateness.begun(handle.name, self._clock())
            self._tell(Ready(handle.name))
            _log.info("%s is up", described(handle.name))
        elif handle.placed.done and self._counts_from_placement(handle):
            self._tell(Placed(handle.name))

    def _is_up(self, handle: Handle) -> bool:
        return self.state.workers[handle.name.worker].phase == "up"

    def _counts_from_placement(self, handle: Handle) -> bool:
        """Whether its time to be ready begins only now."""
        standing = self.state.workers[handle.name.worker]
        return self._survival.start_timeout_s is not None and standing.phase == "starting" and not standing.placed

    def _note_death(self, name: Name, cause: BaseException) -> None:
        if not self.state.lives(name):
            return
        handle = self.handles.get(name.worker)
        if handle is not None and handle.name == name:
            self._backend.kill(handle)
        self._lateness.ended(name)
        self._tell(Died(name, cause))
        _log.warning("%s; %s", _told(name, cause), self._what_next(name.worker))

    def _end_late(self, ticket: Ticket) -> None:
        name = ticket.name
        self.late.append(name)
        why = f"{ticket.method}() took longer than {self._survival.said('fragment_timeout_s')}"
        self._note_death(name, WorkerLost(f"{described(name)} was killed: {why}", worker=name.worker, life=name.life))

    def _tell(self, event: Event) -> None:
        self._todo.extend(self.state.handle(event, self._clock()))
        self.stirs += 1
        if isinstance(event, Ticked | Placed):
            return
        if self.listener is not None and isinstance(event, Ready | Died):
            self.listener(event)
        self.changes += 1
        self.up = {handle.name.worker: handle for handle in self._living() if self._is_up(handle)}

    def _carry_out(self) -> None:
        """Do what was asked for; what an interrupt leaves undone is done the next time."""
        while self._todo:
            self._do(self._todo[0])
            self._todo.popleft()
        if self._seen_at != self.stirs:
            self._seen_at = self.stirs
            self.watched = [ticket for handle in self._living() for ticket in self._news_of(handle)]

    def _news_of(self, handle: Handle) -> tuple[Ticket, ...]:
        if self._is_up(handle):
            return (handle.ended,)
        starting = (handle.ready, handle.ended)
        return (handle.placed, *starting) if self._counts_from_placement(handle) else starting

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Start(name):
                self._start(name)
            case Overdue(name):
                self._note_death(name, self._not_ready(name))
            case GiveUp() if self.listener is not None:
                self.listener(instruction)
            case Fail(causes):
                self.causes = causes

    def _start(self, name: Name) -> None:
        try:
            self.handles[name.worker] = self._backend.spawn(self._make_jobs[name.worker](name))
        except Exception as error:
            if self.placing:
                raise
            self._note_death(name, error)

    def _not_ready(self, name: Name) -> SwathError:
        patience = self._survival.start_timeout_s
        if patience is not None and self.state.workers[name.worker].placed:
            why = f"{described(name)} was not ready {self._survival.said('start_timeout_s')} after it was placed"
            return WorkerLate(why, workers=(name.worker,), deadline=patience)
        return self._not_placed(name)

    def _not_placed(self, name: Name) -> PlacementFailed:
        asked, available = self._backend.room(self.handles[name.worker])
        return PlacementFailed(
            f"{described(name)} was not ready {self._survival.said('placement_timeout_s')} after it was begun: "
            f"it asks for {asked}; there is {available}",
            asked=asked,
            available=available,
        )

    def _what_next(self, worker: int) -> str:
        standing, most = self.state.workers[worker], self._survival.restarts
        if standing.phase == "gone":
            left = "1 worker is" if self.state.left == 1 else f"{self.state.left} workers are"
            return f"it is given up after {standing.restarts} restarts; {left} left"
        delay = most.delay(standing.restarts)
        when = f"in {delay:g} s" if delay else "at once"
        return f"life {standing.life} begins {when} (restart {standing.restarts} of {most.max_per_worker})"


def _error(ticket: Ticket) -> BaseException | None:
    return ticket.outcome.exception if isinstance(ticket.outcome, Error) else None


def _told(name: Name, cause: BaseException) -> str:
    return str(cause) if isinstance(cause, SwathError) else f"{described(name)} failed: {type(cause).__name__}: {cause}"
