"""The workers of one service: who can be called, who is coming back, when too few are left.

    bring_up ─▶ up ─▶ call(handle, …) ─▶ Ticket ─▶ wait ─▶ those that are answered, or FleetFailed
                                                    │ meanwhile: deaths noticed, late ones killed, next lives begun
                                                    └─ look (locked) ─▶ pause (unlocked) ─▶ look …

    a look: news of lives, answers, clock ─▶ FleetState ─▶ what is due ─▶ spawn, kill, log

A pause ends with an answer, with news of workers, or when something is due; a Ctrl-C is looked for once a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any, Literal, TypeAlias

from swath.errors import Closed, FleetFailed, PlacementFailed, SwathError, WorkerLate, WorkerLost, warn
from swath.options import Survival
from swath.workers.base import Backend, Handle, Job
from swath.workers.fleet_state import FleetState, Standing
from swath.workers.garbage import GarbageWatch
from swath.workers.hosting import described
from swath.workers.tickets import Interrupted, Name, Ticket

News: TypeAlias = Literal["ready", "died", "given up"]

_log = logging.getLogger("swath")


class Fleet:
    """Workers that are replaced when they die, by those who wait for them. Any thread may use it.

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
        self._news: deque[Handle] = deque()  # lives of which something has become
        self._late_at = inf  # when to look for late calls
        self._handles: dict[int, Handle] = {}  # the last life of each worker that was begun
        self._bringing_up = self._closed = False
        self._refused: BaseException | None = None  # what building a first life has raised
        self._lock, self._adding, self._closing = threading.RLock(), threading.RLock(), threading.RLock()
        self._garbage = GarbageWatch(self, backend.close)

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

    # ---- who lives

    def bring_up(self) -> None:
        """Begin all workers and wait until they can be called.

        Some join later if they are not ready after `placement_timeout_s` and `min_workers` are, with a warning.

        Raises:
            PlacementFailed, WorkerLate: too few were ready in time.
            FleetFailed: too few are left.
            Exception: what building a worker raised. In all cases nothing is left of the fleet.
        """
        state, patience, until = self._state, self.survival.start_timeout_s, self._until("placement_timeout_s")
        missing: list[Handle] = []

        def due() -> float:
            those = [state.workers[handle.name.worker] for handle in missing]
            return min([one.since + patience if one.placed and patience else until for one in those], default=until)

        def all_up(_: Sequence[Ticket]) -> bool:
            if (failure := self.failure if self._refused is None else self._refused) is not None:
                raise failure
            missing[:] = [self._handles[worker] for worker in state.workers if state.comes_back(worker)]
            return not missing

        with ExitStack() as undo:
            undo.callback(self.close, 0.0)
            self._bringing_up = True
            self._reached(all_up, (), due)
            self._bringing_up = False
            if missing:
                late = self._not_ready(missing, len(state.workers))
                if len(self.up) < state.required:
                    raise late
                warn(f"{late}; the others begin without them")
            undo.pop_all()

    def add(self, n: int, accept: Callable[[Sequence[Handle]], None] | None = None) -> tuple[int, ...]:
        """Bring up more workers and wait until they can be called; their indices, which go on counting.

        Args:
            n: how many.
            accept: sees them before they are added; what it raises is raised, and none is.

        Raises:
            PlacementFailed, WorkerLate: they were not ready in time.
            Exception: what building them raised, or `WorkerLost`. In all cases none is added.
        """
        handles: list[Handle] = []

        def all_up(built: Sequence[Ticket]) -> bool:
            for ticket in built:
                _ = ticket.value  # raises what building it raised
            return len(built) == n

        with self._adding, ExitStack() as undo:
            for worker in range(self._state.next_index, self._state.next_index + n):
                handles.append(self._backend.spawn(self._make_job(Name(worker, 0))))
                undo.callback(self._backend.kill, handles[-1])
            until = self._until("placement_timeout_s")
            if self._reached(all_up, [handle.ready for handle in handles], lambda: until) is None:
                raise self._not_ready([handle for handle in handles if not handle.ready.done], n)
            if accept is not None:
                accept(handles)
            undo.pop_all()
            with self._changing():
                for handle in handles:
                    self._handles[handle.name.worker] = handle
                    self._state.added(self._clock())
                    self._changed()
                    self._follow(handle)
        return tuple(handle.name.worker for handle in handles)

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

    def look(self) -> None:
        """Take note of what has happened and do what is due, without waiting; `Closed` after the end, and in a fork."""
        self._backend.owner.require_here("these workers")
        with self._changing():
            self._require_open()
            while self._news:
                self._look_at(self._news[0])
                self._news.popleft()  # afterwards, since Ctrl-C may come in between
            if self._clock() >= self._late_at:
                self._end_late(self._clock())

    def wake(self) -> None:
        """Let those who wait look whether they are interrupted."""
        self._backend.wake()

    def close(self, timeout: float = 10.0, *, ask: bool = True) -> list[BaseException]:
        """Have the workers close, kill what is left after `timeout` seconds; what closing them raised.

        From then on all else raises `Closed`. Twice is fine; a second thread waits for the first. In a fork of the
        process that brought them up nothing is done.

        Args:
            timeout: in seconds.
            ask: whether the workers' `close` is called.
        """
        if not self._backend.owner.is_here:
            return []
        with self._closing:
            if self._closed:
                return []
            with self._changing():
                self._closed = True
                self.changes += 1
            try:
                until, handles = self._clock() + timeout, self.up.values() if ask and timeout > 0 else ()
                tickets = [self._backend.call(handle, "close") for handle in handles]
                while (missing := [ticket for ticket in tickets if not ticket.done]) and self._clock() < until:
                    self._backend.wait(missing, until - self._clock())
            finally:
                self._backend.close()
                self._garbage.end()
        errors = [ticket.error for ticket in tickets]
        return [error for error in errors if error is not None and not isinstance(error, WorkerLost)]

    # ---- what they are asked

    def call(self, handle: Handle, method: str, *args: Any, timed: bool = False) -> Ticket:
        """Send a call to one life of a worker and return at once; it answers one call after another.

        Args:
            handle: of `up`. If that life is over the answer is `WorkerLost`.
            method: of the worker.
            *args: its arguments; `TypeError` if one cannot travel.
            timed: whether the worker is killed when this takes longer than `fragment_timeout_s`, from when it has
                nothing older to do.
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
        seen: int | None = None,
    ) -> list[Ticket]:
        """Wait for an answer, or for news of workers, and look after the workers meanwhile.

        Args:
            tickets: of calls; may be none.
            timeout: in seconds; `None` for none.
            interrupted: looked at after each `wake`; true ends the wait. It must leave the fleet alone.
            seen: `changes` as the caller knows them; news since then ends the wait. By default those of now.

        Returns:
            The tickets that are answered, in the order given; none if the wait ended for another reason. Those of
            workers that have died are answered with `WorkerLost`.

        Raises:
            FleetFailed: too few are left, and nothing is answered.
        """
        known, until = self.changes if seen is None else seen, inf if timeout is None else self._clock() + timeout

        def news(done: Sequence[Ticket]) -> bool:
            if not done and (failure := self.failure) is not None:
                raise failure
            return bool(done) or self.changes != known

        return self._reached(news, tickets, lambda: until, interrupted) or []

    def answers(self, tickets: Sequence[Ticket], timeout: float | None = None) -> None:
        """Wait until all are answered, also when too few workers are left; of those that die, with `WorkerLost`.

        Raises:
            WorkerLate: some are not after `timeout` seconds, `fragment_timeout_s` by default.
        """
        until = self._until("fragment_timeout_s") if timeout is None else self._clock() + timeout
        if self._reached(lambda done: len(done) == len(tickets), tickets, lambda: until) is None:
            patience = self.survival.fragment_timeout_s if timeout is None else timeout
            missing = [ticket for ticket in tickets if not ticket.done]
            workers = tuple(sorted({ticket.name.worker for ticket in missing}))
            why = f"have not answered {missing[0].method}() within {patience} s; they go on with it"
            raise WorkerLate(f"workers {list(workers)} {why}", workers=workers, deadline=patience)

    def wait_until_back(self, workers: Sequence[int]) -> None:
        """Wait until each of these can be called, or will never be again.

        Raises:
            WorkerLate: some are still coming back after `fragment_timeout_s`.
        """
        until, comes_back = self._until("fragment_timeout_s"), self._state.comes_back
        if self._reached(lambda _: not any(map(comes_back, workers)), (), lambda: until) is None:
            late, patience = tuple(filter(comes_back, workers)), self.survival.fragment_timeout_s
            why = f"did not restart within {patience} s; set fragment_timeout_s to wait longer"
            raise WorkerLate(f"workers {list(late)} {why}", workers=late, deadline=patience)

    def __repr__(self) -> str:
        """A status line."""
        phases = [standing.phase for standing in self.standings().values()]
        counts = [
            f"{phases.count(phase)} {phase}" for phase in ("up", "starting", "waiting", "gone") if phase in phases
        ]
        return f"<Fleet {len(phases)} workers: {'closed' if self._closed else ', '.join(counts)}>"

    # ---- waiting

    def _reached(
        self,
        goal: Callable[[Sequence[Ticket]], bool],
        tickets: Sequence[Ticket],
        until: Callable[[], float],
        interrupted: Interrupted | None = None,
    ) -> list[Ticket] | None:
        """Look and wait until the goal is reached; the tickets that are answered then, `None` if it is too late.

        Args:
            goal: asked after each look with the tickets that are answered; what it raises is raised.
            tickets: of calls; whatever is answered is a reason to look again.
            until: gives a reading of the clock.
            interrupted: true ends the wait.
        """
        while True:
            done = [ticket for ticket in tickets if ticket.done]
            self.look()  # afterwards: it is known of deaths that have answered some
            known = self.changes
            unanswered = [ticket for ticket in tickets if not ticket.done]
            if len(done) + len(unanswered) < len(tickets):
                continue
            if goal(done):
                return done
            now, latest = self._clock(), until()
            if now >= latest or (interrupted is not None and interrupted()):
                return None
            due = min(latest, self._state.due_at, self._late_at)

            def over() -> bool:
                stirred = bool(self._news) or self.changes != known or self._late_at < due  # noqa: B023  within
                return stirred or (interrupted is not None and interrupted())

            self._backend.wait(unanswered, max(0.0, due - now), over)

    def _until(self, setting: str) -> float:
        patience: float | None = getattr(self.survival, setting)
        return inf if patience is None else self._clock() + patience

    # ---- what becomes of lives; all of it within `_changing`

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the workers were shut down; build new ones")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One thread at a time; what is due is done, and if something has changed those who wait look again."""
        with self._lock:
            before = self.changes
            try:
                yield
                if not self._closed:
                    self._do_what_is_due()
            finally:
                if self.changes != before:
                    self._backend.wake()

    def _changed(self, news: News | None = None, name: Name | None = None, cause: BaseException | None = None) -> None:
        """Other workers can be called than before; whoever listens is to know of news."""
        if self.listener is not None and news is not None and name is not None:
            self.listener(news, name, cause)
        self.changes += 1
        workers = self._state.workers
        self.up = {worker: handle for worker, handle in self._handles.items() if workers[worker].phase == "up"}

    def _follow(self, handle: Handle) -> None:
        """Take note from now on of what becomes of a life; something may have happened already."""
        handle.news = self._news
        self._news.append(handle)

    def _look_at(self, handle: Handle) -> None:
        """Note what has become of a life, unless it is known to be over."""
        name = handle.name
        if not self._state.lives(name) or self._handles[name.worker] is not handle:
            return
        standing, refusal = self._state.workers[name.worker], handle.ready.error
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

    def _note_death(self, name: Name, cause: BaseException) -> None:
        state = self._state
        if not state.lives(name):
            return
        handle = self._handles.get(name.worker)
        if handle is not None and handle.name == name:
            self._backend.kill(handle)
        if (gone := self._backend.gone) is not None:
            self.place_gone = gone
            cause = WorkerLost(f"{cause}; {gone}", worker=name.worker, life=name.life)
            for each in self._handles.values():
                self._backend.kill(each)
        state.died(name, cause, self._clock(), last=gone is not None)
        self._changed("died", name, cause)
        if state.workers[name.worker].phase == "gone":
            self._changed("given up", name)
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
        if state.due_at > now():
            return
        late = state.due("starting", now())
        if waiting := [name for name in late if state.waits_for_room(name)]:
            asked, free = self._backend.room(self._handles[waiting[0].worker])
            workers = ", ".join(str(name.worker) for name in waiting)
            _log.warning("workers %s wait for room: each asks for %s; there is %s", workers, asked, free)
        for name in late:
            if name in waiting:
                state.begun(name, now())
            else:
                self._note_death(name, self._not_ready([self._handles[name.worker]], len(state.workers)))
        while names := state.due("waiting", now()):
            for name in names:
                self._begin(name)

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
            self._follow(self._handles[name.worker])

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
            return f"it is given up after {standing.restarts} restarts; {self._state.left} workers are left"
        delay = most.delay(standing.restarts)
        when = f"in {delay:g} s" if delay else "at once"
        return f"life {standing.life} begins {when} (restart {standing.restarts} of {most.max_per_worker})"
