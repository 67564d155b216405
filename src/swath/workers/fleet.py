"""The workers of one service, with their lives: who can be called, who is coming back, when too few are left.

    bring_up ─▶ up ─▶ call(handle, …) ─▶ Ticket ─▶ wait ─▶ those that are answered
                                                    │ meanwhile: deaths noticed, late ones killed, next lives begun
                                                    └─▶ FleetFailed

What survives is decided in `fleet_state.py` and done in `lives.py`, by whichever thread waits or looks. Nobody polls: a
wait ends by itself only when something is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.options import Survival
from swath.workers.base import Backend, Handle
from swath.workers.fleet_state import FIRST, Standing
from swath.workers.lives import Listener, Lives, MakeJob
from swath.workers.outcome import Error
from swath.workers.placing import Placing
from swath.workers.tickets import Name, Ticket
from swath.workers.watch import Interrupted, Watch


class Fleet:
    """Workers that are replaced when they die. Any thread may use it.

    Args:
        backend: where they live; the fleet's own from now on.
        make_job: how a life is begun; called for each anew. It must be quick and leave the fleet alone.
        n: how many workers.
        survival: how often they are replaced, how long they may take, how many are needed.
        clock: seconds, the same as of the backend's tickets.
        first: the name of the first worker; the others follow.

    Attributes:
        survival: as it was given.
    """

    def __init__(
        self,
        backend: Backend,
        make_job: MakeJob,
        n: int,
        survival: Survival,
        clock: Callable[[], float] = time.monotonic,
        first: Name = FIRST,
    ) -> None:
        self.survival = survival
        self._backend = backend
        self._patience = survival.fragment_timeout_s
        self._lives = Lives(backend, [make_job] * n, survival, clock, first)
        self._watch = Watch(backend, self._lives, clock)
        self._placing = Placing(backend, self._lives, self._watch, survival)
        self._adding = threading.Lock()
        self._closing = threading.RLock()

    @property
    def up(self) -> Mapping[int, Handle]:
        """The workers that can be called, as far as is known, by index; a new mapping whenever that changes."""
        return self._lives.up

    @property
    def changes(self) -> int:
        """Counts news: workers that are up, have died, were given up or added; for `wait`."""
        return self._lives.changes

    @property
    def restarts(self) -> int:
        """Lives that replace others."""
        return self._lives.state.restarts

    @property
    def late(self) -> int:
        """Lives that were ended because they took too long."""
        return len(self._lives.late)

    def was_late(self, name: Name) -> bool:
        """Whether this life was ended because it took too long."""
        return name in self._lives.late

    @property
    def workers_lost(self) -> int:
        """Workers that were given up."""
        return sum(standing.phase == "gone" for standing in self.standings().values())

    @property
    def abandoned(self) -> int:
        """Lives that are over but cannot be ended, where there are such."""
        return len(self.left_behind)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What these are called."""
        return tuple(getattr(self._backend, "left_behind", ()))

    @property
    def place_gone(self) -> str | None:
        """Why no worker can live where these did, in words, if their whole place has gone; only a cluster can."""
        return getattr(self._backend, "gone", None)

    @property
    def failure(self) -> FleetFailed | None:
        """What ends the run, if too few are left."""
        return self._placing.failure()

    def standings(self) -> dict[int, Standing]:
        """Each worker's life and phase, as far as is known."""
        with self._watch.holding() as lives:
            return dict(lives.state.workers)

    def handle(self, worker: int) -> Handle:
        """The last life of a worker that was begun; over, perhaps.

        Raises:
            KeyError: no life of such a worker was begun.
        """
        return self._lives.handles[worker]

    def name(self, worker: int) -> Name:
        """Which life a worker lives; of one that is waited for, the next."""
        with self._watch.holding() as lives:
            return lives.state.named(worker, lives.state.workers[worker].life)

    def bring_up(self) -> tuple[int, ...]:
        """Begin all workers and wait until they can be called.

        When some are not ready after `placement_timeout_s` and `min_workers` are, there is a warning and they join
        later.

        Returns:
            Who joins later.

        Raises:
            PlacementFailed: too few were ready in time.
            FleetFailed: too few are left.
            Exception: what building a worker raised. In all cases nothing is left of the fleet.
        """
        try:
            return self._placing.first()
        except BaseException:
            self.close(0.0)
            raise

    def add(
        self, make_jobs: Sequence[MakeJob], accept: Callable[[Sequence[Handle]], None] | None = None
    ) -> tuple[int, ...]:
        """Bring up more workers, each in its own way, and wait until they can be called.

        Args:
            make_jobs: how each is begun.
            accept: sees them before they are added; what it raises is raised, and none is.

        Returns:
            Their indices, which go on counting.

        Raises:
            PlacementFailed: they were not ready in time.
            Exception: what building them raised, or `WorkerLost`. In all cases none is added.
        """
        with self._adding:
            state = self._lives.state
            first = state.next_index
            handles: list[Handle] = []
            try:
                for number, make_job in enumerate(make_jobs):
                    handles.append(self._backend.spawn(make_job(state.named(first + number, 0))))
                self._placing.more(handles)
                if accept is not None:
                    accept(handles)
            except BaseException:
                for handle in handles:
                    self._backend.kill(handle)
                raise
            with self._watch.holding() as lives:
                for handle, make_job in zip(handles, make_jobs, strict=True):
                    lives.adopt(handle, make_job)
        return tuple(handle.name.worker for handle in handles)

    def call(self, handle: Handle, method: str, *args: Any, late: bool = False) -> Ticket:
        """Send a call to one life of a worker and return at once; it answers one call after another.

        Args:
            handle: of `up`. If that life is over the answer is `WorkerLost`.
            method: of the worker.
            *args: its arguments.
            late: whether the worker is killed when this takes longer than `fragment_timeout_s`, from when it has
                nothing older to do.

        Raises:
            Closed: the fleet is closed.
            TypeError: an argument cannot travel.
        """
        self._watch.require_open()
        ticket = self._backend.call(handle, method, *args)
        with self._watch.holding() as lives:
            lives.called(ticket, timed=late)
        return ticket

    def look(self) -> None:
        """Take note of what has happened and do what is due, as `wait`, without waiting.

        Raises:
            Closed: the fleet is closed.
        """
        self._watch.look()

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
            Closed: the fleet is closed.
        """
        known = self.changes if seen is None else seen

        def news() -> bool:
            if any(ticket.done for ticket in tickets):
                return True
            if (failure := self.failure) is not None:
                raise failure
            return self.changes != known

        self._watch.reached(news, tickets, self._watch.until(timeout), interrupted)
        done = [ticket for ticket in tickets if ticket.done]
        return self._noted(done) if done else []

    def answers(self, tickets: Sequence[Ticket], timeout: float | None = None) -> None:
        """Wait until all are answered, also when too few workers are left; of those that die, with `WorkerLost`.

        Args:
            tickets: of calls.
            timeout: in seconds; `fragment_timeout_s` by default.

        Raises:
            WorkerLate: some are not.
            Closed: the fleet is closed.
        """
        patience = self._patience if timeout is None else timeout
        if not self._watch.reached(
            lambda: all(ticket.done for ticket in tickets), tickets, self._watch.until(patience)
        ):
            raise _late([ticket for ticket in tickets if not ticket.done], patience)
        self._noted(tickets)

    def settle(self, workers: Sequence[int]) -> None:
        """Wait until each of these can be called, or will never be again.

        Raises:
            WorkerLate: some are still coming back after `fragment_timeout_s`.
            Closed: the fleet is closed.
        """

        def coming() -> list[int]:
            return [worker for worker in workers if self._lives.state.comes_back(worker)]

        if not self._watch.reached(lambda: not coming(), until=self._watch.until(self._patience)):
            late = coming()
            raise WorkerLate(
                f"workers {late} did not come back within {self._patience} s; they are waited for no longer",
                workers=tuple(late),
                deadline=self._patience,
            )

    def wake(self) -> None:
        """Let those who wait look whether they are interrupted."""
        self._backend.wake()

    def replace(self, handle: Handle, cause: BaseException) -> None:
        """Kill one life of a worker, which counts as its death; nothing if it is over."""
        with self._watch.holding() as lives:
            lives.end(handle.name, cause)

    def listen(self, listener: Listener) -> None:
        """Have somebody hear from now on what becomes of workers; called by whichever thread looks after them."""
        with self._watch.holding() as lives:
            lives.listener = listener

    def retire(self, worker: int) -> None:
        """Kill a worker that is to have no further life; that counts against nobody. Twice is fine."""
        with self._watch.holding() as lives:
            lives.retire(worker)

    def forgive(self) -> None:
        """Restarts so far count no longer against `survival.restarts`; workers that were given up stay so."""
        with self._watch.holding() as lives:
            lives.forgive()

    def close(self, timeout: float = 10.0, farewell: str | None = "close") -> list[BaseException]:
        """Ask the workers to close, wait for that, kill what is left. From then on calls raise `Closed`.

        Twice is fine; a second thread waits for the first.

        Args:
            timeout: how long to wait for the workers, in seconds.
            farewell: the method that closes a worker; `None` to ask none.

        Returns:
            What closing them raised.
        """
        with self._closing:
            if not self._watch.end():
                return []
            try:
                return self._say(farewell, timeout) if farewell is not None and timeout > 0 else []
            finally:
                self._backend.close()

    def __repr__(self) -> str:
        """A status line."""
        phases = [standing.phase for standing in self.standings().values()]
        counts = [f"{phases.count(phase)} {phase}" for phase in ("up", "starting", "waiting", "gone")]
        status = "closed" if self._watch.over else ", ".join(part for part in counts if part[0] != "0")
        return f"<Fleet {len(phases)} workers: {status}>"

    def _noted(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """These answers, once it is known of whose deaths they tell: some have come after the last look."""
        with self._watch.holding() as lives:
            if not self._watch.over:
                lives.look(tickets)
            lives.answered(tickets)
        return list(tickets)

    def _say(self, farewell: str, timeout: float) -> list[BaseException]:
        until = self._watch.until(timeout)
        tickets = [self._backend.call(handle, farewell) for handle in self.up.values()]
        while (missing := [ticket for ticket in tickets if not ticket.done]) and not self._watch.passed(until):
            self._backend.wait(missing, self._watch.left(until))
        errors = (ticket.outcome.exception for ticket in tickets if isinstance(ticket.outcome, Error))
        return [error for error in errors if not isinstance(error, WorkerLost)]


def _late(missing: Sequence[Ticket], patience: float | None) -> WorkerLate:
    workers = tuple(sorted({ticket.name.worker for ticket in missing}))
    return WorkerLate(
        f"workers {list(workers)} have not answered {missing[0].method}() within {patience} s; they are left at it",
        workers=workers,
        deadline=patience,
    )
