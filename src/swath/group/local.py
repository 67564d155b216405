"""One worker in this process, and its weights: a group of one, whose member is called directly.

    request ─▶ carried out in the thread that waits     call ─▶ carried out at once, between two requests

There are no copies and no deaths: arguments and answers are the objects themselves. An `Access` decides which thread
may use the worker: one thread draws at a time, control calls come between two fragments.
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
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.packing import Parcel
from swath.workers.tickets import Name, Received, Ticket

CONTROL_DEADLINE_S = 600.0


class Access:
    """Gives turns to threads, one at a time, in the order of their calls.

    A fragment is made inside `collecting()`, a control call runs inside `control()`: never both at once, and a control
    call that waits comes before the next fragment. `run_soon()` takes actions that must not wait, and runs them right
    after the running fragment. A second thread that draws is refused.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.halted = self.closed = False
        self._changed, self._drawing = threading.Condition(), threading.Lock()
        self._threads: deque[int] = deque()  # the first has its turn, the others wait
        self._collecting_thread: int | None = None
        self._delayed: deque[Callable[[], None]] = deque()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Refuse draws of other threads within the block.

        Raises:
            RuntimeError: another draw is going on.
        """
        if self._drawing.locked():
            raise RuntimeError(f"this {self.name} is being drawn from already; one thread draws at a time")
        with self._drawing:
            yield

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Hold the turn while a fragment is made in the block; run delayed actions before and after it."""
        with self._open_turn(CONTROL_DEADLINE_S, "the control call in progress did not end; draw again later"):
            try:
                self._collecting_thread = threading.get_ident()
                yield
            finally:
                self._collecting_thread = None

    @contextmanager
    def control(self, deadline: float | None = None) -> Iterator[None]:
        """Wait for the end of the running fragment, and delay the next one meanwhile.

        Raises:
            Closed: after shutdown.
            WorkerLate: the running fragment did not end in time.
            RuntimeError: called within the fragment that it would have to wait for.
        """
        self.require_between()
        limit = CONTROL_DEADLINE_S if deadline is None else deadline
        with self._open_turn(limit, "the fragment in progress did not end; nothing was changed, call again later"):
            yield

    def run_soon(self, action: Callable[[], None]) -> None:
        """Run an action now if no fragment is being made, otherwise right after it."""
        self.require_open()
        self._delayed.append(action)
        self._run_delayed()

    def require_between(self) -> None:
        """Raise `Closed` after shutdown, and `RuntimeError` within a fragment."""
        self.require_open()
        if self._collecting_thread == threading.get_ident():
            raise RuntimeError(f"a control call of this {self.name} cannot run inside its own fragment; call it later")

    def require_open(self) -> None:
        """Raise `Closed` after shutdown."""
        if self.halted:
            raise Closed(f"this {self.name} was shut down; build another one")

    def close(self, timeout: float, action: Callable[[], Any]) -> None:
        """Stop the running fragment at its next step and close; run `action` then, once.

        Raises:
            WorkerLate: the fragment did not stop within `timeout` seconds; its own thread closes when it does.
        """

        def close() -> None:
            if not self.closed:
                self.closed = True
                action()

        self.halted = True
        with self._turn(timeout) as has_turn:
            if has_turn:
                close()
            else:
                self._delayed.append(close)
        self._run_delayed()
        if not self.closed:
            reason = f"a step of the env or the policy has not returned within {timeout} s"
            raise WorkerLate(f"{reason}; envs are closed as soon as it does", workers=(0,), deadline=timeout)

    @contextmanager
    def _open_turn(self, deadline: float, late: str) -> Iterator[None]:
        try:
            with self._turn(deadline) as has_turn:
                if not has_turn:
                    raise WorkerLate(f"after {deadline} s: {late}", workers=(0,), deadline=deadline)
                self.require_open()
                self._run_delayed()
                yield
        finally:
            self._run_delayed()

    @contextmanager
    def _turn(self, timeout: float) -> Iterator[bool]:
        """Wait for a turn, and yield whether it came in time. A thread that has its turn may take another within it.

        Ctrl-C may come between any two lines; a thread that leaves is removed from the queue in any case.
        """
        thread = threading.get_ident()
        if thread in self._threads:
            yield True
            return
        try:
            with self._changed:
                self._threads.append(thread)
                has_turn = self._changed.wait_for(lambda: self._threads[0] == thread, timeout)
            yield has_turn
        finally:
            with self._changed:
                if thread in self._threads:
                    self._threads.remove(thread)
                self._changed.notify_all()

    def _run_delayed(self) -> None:
        """Run delayed actions, unless another thread has its turn: that thread runs them afterwards."""
        while self._delayed and self._collecting_thread != threading.get_ident():
            with self._turn(0.0) as has_turn:
                if not has_turn:
                    return
                if self._delayed:
                    self._delayed.popleft()()


class LocalFleet:
    """The only worker, in this process, with the methods of a `Fleet`. Any thread may use it.

    Args:
        member: answers requests.
        access: puts requests, calls and publications of several threads in order.

    Attributes:
        up: handles of workers that can be called: the one worker.
    """

    event_count = restarts = 0
    late = abandoned = ()
    failure: FleetFailed | None = None

    def __init__(self, member: Any, access: Access) -> None:
        self.member, self._access = member, access
        self.up: Mapping[int, Handle] = {0: Handle(Job(object, FIRST_LIFE))}
        self._open: dict[Ticket, Sequence[Any]] = {}

    def statuses(self) -> dict[int, WorkerStatus]:
        """Return the status of the worker: up."""
        return {0: WorkerStatus(phase="up")}

    def handle(self, worker: int) -> Handle:
        """Return the handle of the worker."""
        return self.up[worker]

    def call(self, handle: Handle, method: str, *args: Any, timed: bool = False) -> Ticket:
        """Call the member between two requests; `wait` carries requests out (`timed`)."""
        ticket = Ticket(handle.name, method)
        if timed:
            self._open[ticket] = method, *args
        else:
            with self._access.control():
                ticket.settle(self._answer(method, *args))
        return ticket

    def wait(
        self,
        tickets: Sequence[Ticket],
        timeout: float | None,  # noqa: ARG002  a request is not broken off
        interrupted: Callable[[], bool],  # noqa: ARG002  the member looks whether it is halted after each step
        known_events: int,  # noqa: ARG002  nothing changes
    ) -> None:
        """Carry out requests until a ticket is done. The next call repeats a request that Ctrl-C broke off."""
        while tickets and not any(ticket.done for ticket in tickets):
            with self._access.collecting():
                ticket = next(iter(self._open))
                ticket.settle(self._answer(*self._open[ticket]))
                del self._open[ticket]

    def wait_for_all(self, tickets: Sequence[Ticket], timeout: float | None) -> None:
        """Do nothing: calls are answered at once."""

    def wait_until_back(self, workers: Sequence[int]) -> None:
        """Do nothing: the worker can always be called."""

    def process_events(self) -> None:
        """Do nothing: the worker does not die."""

    def wake(self) -> None:
        """Do nothing: threads only wait for turns."""

    def close(self, timeout: float, *, ask: bool = True) -> list[BaseException]:  # noqa: ARG002  at once
        """Close the member, and return the exceptions of that call."""
        outcome = run_and_capture(self.member.close) if ask else None
        return [outcome.exception] if isinstance(outcome, Error) else []

    def replace(self, name: Name, cause: BaseException) -> Never:  # noqa: ARG002  there is no other
        """Raise the cause: no other worker can replace this one."""
        raise cause

    def _answer(self, method: str, *args: Any) -> Outcome:
        """Call a method of the member, and return its outcome."""
        outcome = run_and_capture(getattr(self.member, method), *args)
        if isinstance(outcome, Value) and isinstance(parcel := outcome.value, Parcel):
            return Value(Received(parcel.head, lambda: parcel.body))
        return outcome


class LocalChannel(Channel):
    """The weights of the one worker, copied into its models at once, or right after the running request.

    Args:
        member: the worker that gets the weights.
        access: access of its fleet.
    """

    def __init__(self, member: Any, access: Access) -> None:
        super().__init__(lambda value: LocalShared(lambda: value))
        self._member, self._access = member, access

    def publish_each(self, models: Mapping[int | None, Models], version: int | None = None) -> int:
        """Publish as `Channel` does; the worker skips versions that it cannot take in time."""
        self._access.require_open()
        number = super().publish_each(models, version)
        self._access.run_soon(self._copy_to_member)
        return number

    @contextmanager
    def update_for(self, life: Life) -> Iterator[Update | None]:  # noqa: ARG002  there is one
        """Yield `None`: requests carry no weights, which were copied before."""
        yield None

    def _copy_to_member(self) -> None:
        with super().update_for(FIRST_LIFE) as update:
            if update is not None:
                self._member.apply_weights(update.opened(), update.version)
                self.withdraw(update.models)  # the models have copies
