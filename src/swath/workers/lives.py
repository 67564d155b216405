"""The lives of a fleet's workers: what has become of them is reported to the state, what is due is done.

    tickets, clock ─▶ notice ─▶ placed, ready, died ─▶ FleetState ─▶ what is due ─▶ spawn, kill, log

Nothing here waits. Whatever changes a life is done within `_changing`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Literal, TypeAlias

from swath.errors import Closed, FleetFailed, PlacementFailed, SwathError, WorkerLate, WorkerLost
from swath.options import Survival
from swath.workers.base import Backend, Handle, Job
from swath.workers.fleet_state import FleetState, Standing
from swath.workers.garbage import GarbageWatch
from swath.workers.hosting import described
from swath.workers.tickets import Name, Ticket

News: TypeAlias = Literal["ready", "died", "given up"]

_log = logging.getLogger("swath")


class WorkerLives:
    """Workers that are replaced when they die, whenever somebody looks. Any thread may.

    Args:
        backend: where they live; the fleet's own from now on, which is closed when the fleet is collected as garbage.
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
        listener: called with what becomes of which life, and the cause of a death, by whoever looks after the workers;
            must leave the fleet alone.
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
        self.changes = 0
        self.late: set[Name] = set()
        self.place_gone: str | None = None
        self.listener: Callable[[News, Name, BaseException | None], None] | None = None
        self._backend, self._make_job, self._clock = backend, make_job, clock
        self._state = FleetState(n, survival, first)
        self._late_at = inf  # when to look for late calls
        self._handles: dict[int, Handle] = {}  # the last life of each worker that was begun
        self._watched: list[Ticket] = []  # their outcome is news
        self._stirs = self._seen_at = 0  # counts what those who wait must look at
        self._bringing_up = self._closed = False
        self._refused: BaseException | None = None  # what building a first life has raised
        self._lock, self._adding, self._closing = threading.RLock(), threading.RLock(), threading.RLock()
        self._garbage = GarbageWatch(self, backend.close, at_exit=True)

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
        state, least = self._state, self.survival.min_workers
        if state.causes is None:
            return None
        needed = "all" if least is None else f"min_workers={least}"
        why = "; ".join(f"{type(cause).__name__}: {cause}" for cause in state.causes)
        return FleetFailed(
            f"{state.left} of {len(state.workers)} workers are left, and {needed} are needed; the others ended: {why}",
            causes=state.causes,
        )

    def standings(self) -> dict[int, Standing]:
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
                self._backend.kill(handle)
            self._state.retired(worker, self._clock())
            self._changed()

    def forgive(self) -> None:
        """Restarts so far count no longer against `survival.restarts`; workers that were given up stay so."""
        with self._changing():
            self._state.forgiven()

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the workers were shut down; build another collector or evaluator")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One thread at a time; what is due is done, and if something has changed those who wait look again."""
        with self._lock:
            before = self._stirs
            try:
                yield
                if not self._closed:
                    self._do_what_is_due()
            finally:
                if self._stirs != before:
                    self._backend.wake()

    def _changed(self, news: News | None = None, name: Name | None = None, cause: BaseException | None = None) -> None:
        """Other workers can be called than before; whoever listens is to know of news."""
        if self.listener is not None and news is not None and name is not None:
            self.listener(news, name, cause)
        self._stirs += 1
        self.changes += 1
        workers = self._state.workers
        self.up = {worker: handle for worker, handle in self._handles.items() if workers[worker].phase == "up"}

    def _notice(self, answered: Sequence[Ticket]) -> None:
        if any(ticket.done for ticket in self._watched):
            for handle in self._living():
                self._look_at(handle)
        for ticket in answered:
            if isinstance(error := ticket.error, WorkerLost):
                self._note_death(ticket.name, error)
        if self._clock() >= self._late_at:
            self._end_late(self._clock())

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
            self._state.ready(name, self._clock())
            self._changed("ready", name)
            _log.info("%s is up", described(name))
        elif handle.placed.done and standing.phase == "starting" and not standing.placed:
            self._state.placed(name, self._clock())
            self._stirs += 1

    def _note_death(self, name: Name, cause: BaseException) -> None:
        state = self._state
        if not state.lives(name):
            return
        handle = self._handles.get(name.worker)
        if handle is not None and handle.name == name:
            self._backend.kill(handle)
        state.died(name, cause, self._clock())
        self._changed("died", name, cause)
        ends = [name] if state.workers[name.worker].phase == "gone" else []
        if (gone := self._backend.gone) is not None:
            self.place_gone = gone
            for handle in self._living():
                self._backend.kill(handle)
            ends += [Name(worker, one.life) for worker, one in state.workers.items() if one.phase != "gone"]
            state.place_gone(WorkerLost(f"the workers are lost: {gone}"), self._clock())
        for end in ends:
            self._changed("given up", end)
        failed = f"{described(name)} failed: {type(cause).__name__}: {cause}"
        _log.warning("%s; %s", cause if isinstance(cause, SwathError) else failed, self._what_next(name.worker))

    def _end_late(self, now: float) -> None:
        """Kill who has taken too long with a call, counted from when its turn came."""
        busy = [(handle, *call) for handle in self.up.values() if (call := handle.busy_with()) is not None]
        patience = self.survival.fragment_timeout_s or inf
        self._late_at = min((since for _, _, since in busy), default=inf) + patience
        for handle, method, since in busy:
            if since + patience <= now:
                self.late.add(name := handle.name)
                why = f"{method}() took longer than {self.survival.said('fragment_timeout_s')}"
                error = WorkerLost(f"{described(name)} was killed: {why}", worker=name.worker, life=name.life)
                self._note_death(name, error)

    def _do_what_is_due(self) -> None:
        """What an interrupt leaves undone is due the next time, too."""
        state, now = self._state, self._clock
        for name in state.overdue(now()):
            self._note_death(name, self._not_ready([self._handles[name.worker]], len(state.workers)))
        while names := state.to_begin(now()):
            for name in names:
                self._begin(name)
        if waiting := state.to_report(now()):
            asked, free = self._backend.room(self._handles[waiting[0].worker])
            workers = ", ".join(str(name.worker) for name in waiting)
            _log.warning("workers %s wait for room: each asks for %s; there is %s", workers, asked, free)
        if self._seen_at != self._stirs:
            self._seen_at = self._stirs
            self._watched = [ticket for handle in self._living() for ticket in self._news_of(handle)]

    def _begin(self, name: Name) -> None:
        try:
            self._handles[name.worker] = self._backend.spawn(self._make_job(name))
        except Exception as error:
            if self._bringing_up:
                raise
            self._state.begun(name, self._clock())
            self._note_death(name, error)
        else:
            self._state.begun(name, self._clock())
            self._stirs += 1

    def _news_of(self, handle: Handle) -> tuple[Ticket, ...]:
        standing = self._state.workers[handle.name.worker]
        if standing.phase == "up":
            return (handle.ended,)
        return (handle.ready, handle.ended) if standing.placed else (handle.placed, handle.ready, handle.ended)

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
