"""One worker in this process, and its weights: a group of one, whose member is called directly.

    request ─▶ carried out in the thread that waits     call ─▶ carried out at once, between two requests

No copies, no deaths: the member gets and gives the objects themselves. An `Access` says who may use
the worker now: one thread draws at a time, control calls come between two fragments.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Never

from swath.errors import Closed, FleetFailed, WorkerLate
from swath.weights.channel import Channel, Life, Models, Update
from swath.workers.base import Handle, Job
from swath.workers.fleet_state import FIRST_LIFE, WorkerStatus
from swath.workers.hosting import run_and_capture
from swath.workers.local import LocalShared
from swath.workers.outcome import Failure
from swath.workers.packing import Parcel
from swath.workers.tickets import Received, Ticket

CONTROL_DEADLINE_S = 600.0


class Access:
    """Order among threads: one at a time has its turn, in the order in which they came.

    A fragment is made inside `collecting()`, a control call runs inside `control()`: never both at once, and a control
    call that waits comes before the next fragment. What must not wait is left with `soon()` and done right after the
    running fragment. A second thread that draws is refused.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.halted = self.closed = False
        self._changed, self._drawing = threading.Condition(), threading.Lock()
        self._threads: deque[int] = deque()  # the first has its turn, the others wait
        self._maker: int | None = None  # the thread that makes a fragment now
        self._later: deque[Callable[[], None]] = deque()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Only one thread draws.

        Raises:
            RuntimeError: another draw is going on.
        """
        if self._drawing.locked():
            raise RuntimeError(f"this {self.name} is being drawn from already; one thread draws at a time")
        with self._drawing:
            yield

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """A fragment is being made; what was left is done before, what is left meanwhile right after it."""
        with self._open_turn(CONTROL_DEADLINE_S, "the control call in progress did not end; draw again later"):
            try:
                self._maker = threading.get_ident()
                yield
            finally:
                self._maker = None

    @contextmanager
    def control(self, deadline: float | None = None) -> Iterator[None]:
        """Between two fragments.

        Raises:
            Closed: after shutdown.
            WorkerLate: the running fragment did not end in time.
            RuntimeError: called by what runs within the fragment that it would have to wait for.
        """
        self.require_between()
        patience = CONTROL_DEADLINE_S if deadline is None else deadline
        with self._open_turn(patience, "the fragment in progress did not end; nothing was changed, call again later"):
            yield

    def soon(self, action: Callable[[], None]) -> None:
        """Do it now if no fragment is being made, else right after it."""
        self.require_open()
        self._later.append(action)
        self._do_later()

    def require_between(self) -> None:
        """Raise `Closed` after shutdown, `RuntimeError` for who is called within the fragment."""
        self.require_open()
        if self._maker == threading.get_ident():
            raise RuntimeError(f"a control call of this {self.name} cannot run inside its own fragment; call it later")

    def require_open(self) -> None:
        """Raise `Closed` after shutdown."""
        if self.halted:
            raise Closed(f"this {self.name} was shut down; build another one")

    def close(self, timeout: float, action: Callable[[], Any]) -> None:
        """Stop the running fragment at its next step and close; `action` then runs, once.

        Raises:
            WorkerLate: the fragment did not stop within `timeout` seconds; its own thread closes when it does.
        """

        def close() -> None:
            if not self.closed:
                self.closed = True
                action()

        self.halted = True
        with self._turn(timeout) as mine:
            if mine:
                close()
            else:
                self._later.append(close)
        self._do_later()
        if not self.closed:
            why = f"a step of the env or the policy has not returned within {timeout} s"
            raise WorkerLate(f"{why}; envs are closed as soon as it does", workers=(0,), deadline=timeout)

    @contextmanager
    def _open_turn(self, deadline: float, late: str) -> Iterator[None]:
        try:
            with self._turn(deadline) as mine:
                if not mine:
                    raise WorkerLate(f"after {deadline} s: {late}", workers=(0,), deadline=deadline)
                self.require_open()
                self._do_later()
                yield
        finally:
            self._do_later()

    @contextmanager
    def _turn(self, timeout: float) -> Iterator[bool]:
        """Wait for a turn; whether it came in time. A thread that has its turn may take another one within it.

        Ctrl-C may come between any two lines: whoever has left is not in the queue any more.
        """
        me = threading.get_ident()
        if me in self._threads:
            yield True
            return
        try:
            with self._changed:
                self._threads.append(me)
                mine = self._changed.wait_for(lambda: self._threads[0] == me, timeout)
            yield mine
        finally:
            with self._changed:
                if me in self._threads:
                    self._threads.remove(me)
                self._changed.notify_all()

    def _do_later(self) -> None:
        """Do what was left, unless a fragment is being made, or somebody has the turn, who does it afterwards."""
        while self._later and self._maker != threading.get_ident():
            with self._turn(0.0) as mine:
                if not mine:
                    return
                if self._later:
                    self._later.popleft()()


class LocalFleet:
    """The one worker, where others have a fleet. Any thread may use it.

    Args:
        member: answers requests.
        access: puts requests, calls and publications of several threads in order.

    Attributes:
        up: it can always be called.
    """

    event_count = restarts = 0
    late = abandoned = ()
    failure: FleetFailed | None = None

    def __init__(self, member: Any, access: Access) -> None:
        self.member, self._access = member, access
        self.up: Mapping[int, Handle] = {0: Handle(Job(object, FIRST_LIFE))}
        self._open: dict[Ticket, Sequence[Any]] = {}

    def statuses(self) -> dict[int, WorkerStatus]:
        """It is up."""
        return {0: WorkerStatus(phase="up")}

    def handle(self, worker: int) -> Handle:
        """Its handle."""
        return self.up[worker]

    def call(self, handle: Handle, method: str, *args: Any, timed: bool = False) -> Ticket:
        """Call the member between two requests; a request (`timed`) is left for `wait`."""
        ticket = Ticket(handle.name, method)
        if timed:
            self._open[ticket] = method, *args
        else:
            with self._access.control():
                ticket.settle(run_and_capture(self._carry_out, method, *args))
        return ticket

    def wait(
        self,
        tickets: Sequence[Ticket],
        timeout: float | None,  # noqa: ARG002  a request is not broken off
        interrupted: Callable[[], bool],  # noqa: ARG002  the member looks whether it is halted after each step
        known_events: int,  # noqa: ARG002  nothing changes
    ) -> None:
        """Carry out requests until one of these is done. Ctrl-C leaves the one that it broke off for the next time."""
        while tickets and not any(ticket.done for ticket in tickets):
            with self._access.collecting():
                ticket = next(iter(self._open))
                ticket.settle(run_and_capture(self._carry_out, *self._open[ticket]))
                del self._open[ticket]

    def wait_for_all(self, tickets: Sequence[Ticket], timeout: float | None) -> None:
        """They are there."""

    def wait_until_back(self, workers: Sequence[int]) -> None:
        """It can always be called."""

    def process_events(self) -> None:
        """Nothing becomes of it."""

    def wake(self) -> None:
        """Nobody waits but for a turn."""

    def close(self, timeout: float, *, ask: bool = True) -> list[BaseException]:  # noqa: ARG002  at once
        """Ask the member to close; what that raised."""
        closed = run_and_capture(self.member.close) if ask else None
        return [closed.exception] if isinstance(closed, Failure) else []

    def replace(self, handle: Handle, cause: BaseException) -> Never:  # noqa: ARG002  there is no other
        """There is no other: the cause is raised."""
        raise cause

    def _carry_out(self, method: str, *args: Any) -> Any:
        value = getattr(self.member, method)(*args)
        return Received(value.head, lambda: value.body) if isinstance(value, Parcel) else value


class LocalChannel(Channel):
    """The weights of the one worker: they are copied into its models, now or right after the running request.

    Args:
        member: takes them.
        access: of its fleet.
    """

    def __init__(self, member: Any, access: Access) -> None:
        super().__init__(lambda value: LocalShared(lambda: value))
        self._member, self._access = member, access

    def publish_each(self, models: Mapping[int | None, Models], version: int | None = None) -> int:
        """As that of others; who publishes faster than the worker can take it skips versions."""
        self._access.require_open()
        number = super().publish_each(models, version)
        self._access.soon(self._bring)
        return number

    @contextmanager
    def update_for(self, life: Life) -> Iterator[Update | None]:  # noqa: ARG002  there is one
        """Nothing rides along: what is new is brought before the next request."""
        yield None

    def _bring(self) -> None:
        with super().update_for(FIRST_LIFE) as update:
            if update is not None:
                self._member.take(update.opened(), update.version)
                self.withdraw(update.models)  # the models have them
