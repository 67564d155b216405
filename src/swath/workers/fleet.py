"""The workers of one service: who can be called, who is coming back, when too few are left.

    bring_up ─▶ up ─▶ call(handle, …) ─▶ Ticket ─▶ wait ─▶ those that are answered, or FleetFailed
                                                    │ meanwhile: deaths noticed, late ones killed, next lives begun
                                                    └─ look (locked) ─▶ pause (unlocked) ─▶ look …

Nobody polls: a pause ends with an answer, with news of workers, or when something is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from swath.errors import WorkerLate, WorkerLost, warn
from swath.workers.base import Handle
from swath.workers.lives import WorkerLives
from swath.workers.tickets import Interrupted, Name, Ticket


class Fleet(WorkerLives):
    """Workers that are replaced when they die, by those who wait for them. Any thread may use it; see `WorkerLives`."""

    def bring_up(self) -> tuple[int, ...]:
        """Begin all workers and wait until they can be called; those that join later.

        Some do when they are not ready after `placement_timeout_s` and `min_workers` are; then there is a warning.

        Raises:
            PlacementFailed, WorkerLate: too few were ready in time.
            FleetFailed: too few are left.
            Exception: what building a worker raised. In all cases nothing is left of the fleet.
        """
        try:
            missing = self._first_missing()
        except BaseException:
            self.close(0.0)
            raise
        return tuple(handle.name.worker for handle in missing)

    def _first_missing(self) -> list[Handle]:
        self._bringing_up, until = True, self._until(self.survival.placement_timeout_s)
        state, patience = self._state, self.survival.start_timeout_s
        while True:
            self.look()
            known = self._stirs
            if (failure := self.failure if self._refused is None else self._refused) is not None:
                raise failure
            missing = [self._handles[worker] for worker in state.workers if state.comes_back(worker)]
            placed = [handle.placed.settled for handle in missing]
            due = min([until if patience is None or at is None else at + patience for at in placed], default=until)
            if not missing or self._clock() >= due:
                break
            self._pause((), known, due)
        self._bringing_up = False
        if missing:
            late = self._not_ready(missing, len(state.workers))
            if len(self.up) < state.required:
                raise late
            warn(f"{late}; the others begin without them")
        return missing

    def add(self, n: int, accept: Callable[[Sequence[Handle]], None] | None = None) -> tuple[int, ...]:
        """Bring up more workers and wait until they can be called; their indices, which go on counting.

        Args:
            n: how many.
            accept: sees them before they are added; what it raises is raised, and none is.

        Raises:
            PlacementFailed, WorkerLate: they were not ready in time.
            Exception: what building them raised, or `WorkerLost`. In all cases none is added.
        """
        with self._adding:
            handles: list[Handle] = []
            try:
                for worker in range(self._state.next_index, self._state.next_index + n):
                    handles.append(self._backend.spawn(self._make_job(Name(worker, 0))))  # noqa: PERF401
                self._await_ready(handles)
                if accept is not None:
                    accept(handles)
            except BaseException:
                for handle in handles:
                    self._backend.kill(handle)
                raise
            with self._changing():
                for handle in handles:
                    self._handles[handle.name.worker] = handle
                    self._state.added(self._clock())
                    self._changed()
        return tuple(handle.name.worker for handle in handles)

    def _await_ready(self, handles: Sequence[Handle]) -> None:
        def ready(done: Sequence[Ticket]) -> bool:
            for ticket in done:
                _ = ticket.value  # raises what building it raised
            return len(done) == len(handles)

        until = self._until(self.survival.placement_timeout_s)
        if self._reached(ready, [handle.ready for handle in handles], until) is None:
            raise self._not_ready([handle for handle in handles if not handle.ready.done], len(handles))

    def call(self, handle: Handle, method: str, *args: Any, late: bool = False) -> Ticket:
        """Send a call to one life of a worker and return at once; it answers one call after another.

        Args:
            handle: of `up`. If that life is over the answer is `WorkerLost`.
            method: of the worker.
            *args: its arguments; `TypeError` if one cannot travel.
            late: whether the worker is killed when this takes longer than `fragment_timeout_s`, from when it has
                nothing older to do.
        """
        self._require_open()
        ticket = self._backend.call(handle, method, *args)
        if late:
            with self._lock:
                ticket.timed, due_at = True, ticket.sent + (self.survival.fragment_timeout_s or inf)
                if due_at < self._late_at:
                    with self._changing():
                        self._late_at = due_at
                        self._stirs += 1
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
        known = self.changes if seen is None else seen

        def news(done: Sequence[Ticket]) -> bool:
            if not done and (failure := self.failure) is not None:
                raise failure
            return bool(done) or self.changes != known

        return self._reached(news, tickets, self._until(timeout), interrupted) or []

    def answers(self, tickets: Sequence[Ticket], timeout: float | None = None) -> None:
        """Wait until all are answered, also when too few workers are left; of those that die, with `WorkerLost`.

        Raises:
            WorkerLate: some are not after `timeout` seconds, `fragment_timeout_s` by default.
        """
        patience = self.survival.fragment_timeout_s if timeout is None else timeout
        if self._reached(lambda done: len(done) == len(tickets), tickets, self._until(patience)) is None:
            missing = [ticket for ticket in tickets if not ticket.done]
            workers = tuple(sorted({ticket.name.worker for ticket in missing}))
            why = f"have not answered {missing[0].method}() within {patience} s; they are left at it"
            raise WorkerLate(f"workers {list(workers)} {why}", workers=workers, deadline=patience)

    def settle(self, workers: Sequence[int]) -> None:
        """Wait until each of these can be called, or will never be again.

        Raises:
            WorkerLate: some are still coming back after `fragment_timeout_s`.
        """
        patience, comes_back = self.survival.fragment_timeout_s, self._state.comes_back
        if self._reached(lambda _: not any(map(comes_back, workers)), until=self._until(patience)) is None:
            late = tuple(filter(comes_back, workers))
            why = f"did not come back within {patience} s; they are waited for no longer"
            raise WorkerLate(f"workers {list(late)} {why}", workers=late, deadline=patience)

    def wake(self) -> None:
        """Let those who wait look whether they are interrupted."""
        self._backend.wake()

    def close(self, timeout: float = 10.0, *, ask: bool = True) -> list[BaseException]:
        """Have the workers close, kill what is left after `timeout` seconds; what closing them raised.

        From then on all else raises `Closed`. Twice is fine; a second thread waits for the first.

        Args:
            timeout: in seconds.
            ask: whether the workers' `close` is called.
        """
        with self._closing:
            if self._closed:
                return []
            with self._changing():
                self._closed = True
                self._stirs += 1
            try:
                until, handles = self._until(timeout), self.up.values() if ask and timeout > 0 else ()
                tickets = [self._backend.call(handle, "close") for handle in handles]
                while (missing := [ticket for ticket in tickets if not ticket.done]) and self._clock() < until:
                    self._backend.wait(missing, until - self._clock())
            finally:
                self._backend.close()
                self._garbage.end()
        errors = [ticket.error for ticket in tickets]
        return [error for error in errors if error is not None and not isinstance(error, WorkerLost)]

    def __repr__(self) -> str:
        """A status line."""
        phases = [standing.phase for standing in self.standings().values()]
        counts = [
            f"{phases.count(phase)} {phase}" for phase in ("up", "starting", "waiting", "gone") if phase in phases
        ]
        return f"<Fleet {len(phases)} workers: {'closed' if self._closed else ', '.join(counts)}>"

    def _pause(
        self, tickets: Sequence[Ticket], known: int, until: float = inf, interrupted: Interrupted | None = None
    ) -> None:
        """Wait until it is time for another look."""

        def over() -> bool:
            return self._stirs != known or (interrupted is not None and interrupted())

        due = min(until, self._state.due_at, self._late_at)
        self._backend.wait([*tickets, *self._watched], max(0.0, due - self._clock()), over)

    def _reached(
        self,
        goal: Callable[[Sequence[Ticket]], bool],
        tickets: Sequence[Ticket] = (),
        until: float = inf,
        interrupted: Interrupted | None = None,
    ) -> list[Ticket] | None:
        """Look and wait until the goal is reached; the tickets that are answered then, `None` if it is too late.

        Args:
            goal: asked after each look with the tickets that are answered; what it raises is raised.
            tickets: of calls; whatever is answered is a reason to look again.
            until: a reading of the clock.
            interrupted: true ends the wait.
        """
        while True:
            done = [ticket for ticket in tickets if ticket.done]
            self.look(done)
            known = self._stirs
            unanswered = [ticket for ticket in tickets if not ticket.done]
            if len(done) + len(unanswered) < len(tickets):
                continue  # answered meanwhile, perhaps with a death
            if goal(done):
                return done
            if self._clock() >= until or (interrupted is not None and interrupted()):
                return None
            self._pause(unanswered, known, until, interrupted)

    def _until(self, timeout: float | None) -> float:
        return inf if timeout is None else self._clock() + timeout
