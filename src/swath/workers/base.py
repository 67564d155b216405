"""The interface of backends: what each does, wherever its workers live.

    spawn(job) ─▶ Handle ─▶ call(handle, method, …) ─▶ Ticket ─▶ wait(tickets, deadline) ─▶ settled tickets
                     └────▶ kill(handle): at once; its open tickets are settled with WorkerLost

A worker is any object: `job.build()` builds it in its place, and its methods answer calls one after another, in the
order in which they were sent. An exception in a method is an answer; the worker lives on. A death answers all open
calls. Backends may be used from any thread.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from swath.errors import Closed, WorkerLost
from swath.owner import Owner
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.tickets import Name, Ticket, TicketMonitor


@dataclass(frozen=True)
class Job:
    """Start-up data of a worker.

    Attributes:
        build: builds the object whose methods are called; runs in the worker, travels by cloudpickle.
        name: the life of the worker.
        threads: torch's threads in a worker with a separate process.
        initializer: runs first in the worker, before `build` is unpickled; on Ray, and in the processes of a bare
            backend, before torch and numpy are imported.
        resources: `ray.remote` options; empty elsewhere.
        public: methods that others can call on the worker; on Ray with `handle.method.remote()`.
        registered: name and namespace under which others find the worker, which then outlives this process; on Ray.
        joins: use the registered worker that another process has started and built.
        fds: file descriptors that a worker process gets, as `inherited_fds` in `workers/process/worker.py`.
    """

    build: Callable[[], Any]
    name: Name
    threads: int = 1
    initializer: Callable[[], Any] | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    public: tuple[str, ...] = ()
    registered: tuple[str, str] | None = None
    joins: bool = False
    fds: tuple[int, ...] = ()


class Handle:
    """One life of a worker, and its open tickets. Used by any thread.

    Args:
        job: its start-up data.
        monitor: settles its tickets.

    Attributes:
        placed: settled when the backend has room for the worker and it has started; at once where room is unlimited.
        ready: settled when the worker is built, with `None`, or with the exception of the initializer or of `build`.
        ended: settled with `WorkerLost` when this life is over; where deaths of idle workers are not seen, at the next
            call.
        outlives_backend: whether the worker lives on when its backend is closed.
        idle_since: time of its last answer, in seconds of `time.monotonic`.
        thread: the daemon thread that it lives in, or that follows it, if there is one.
        events: a queue that gets this handle when it is placed, ready or ended.
        kill_reason: completes "worker 0 (life 0) …" for a worker that is being killed.
    """

    def __init__(self, job: Job, monitor: TicketMonitor | None = None) -> None:
        self.job, self.name = job, job.name
        self.outlives_backend = job.registered is not None
        self.placed = Ticket(job.name, "place")
        self.placed.settle(Value(None))
        self.ready = Ticket(job.name, "build")
        self.ended = Ticket(job.name, "live")
        self.idle_since = -inf
        self.thread: threading.Thread | None = None
        self.events: deque[Handle] = deque()
        self.kill_reason: str | None = None
        self._monitor = monitor or TicketMonitor()
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Ticket, Any]] = {}
        self._loss: tuple[str, int | str | None] | None = None
        self.add_ticket(self.ready)

    def add_ticket(self, ticket: Ticket, needed: Any = None) -> bool:
        """Add an open ticket; if the worker has ended, settle the ticket at once and return false.

        Args:
            ticket: settled later by `settle` or `end`.
            needed: kept alive until then.
        """
        with self._lock:
            if self._loss is None:
                self._open[ticket.number] = ticket, needed
                return True
        self._monitor.settle(ticket, self._loss_error())
        return False

    def ticket(self, number: int) -> Ticket:
        """Return the open ticket of this number."""
        return self._open[number][0]

    def oldest_call(self) -> tuple[str, float] | None:
        """Return the method of the oldest call and its earliest start, if the worker has any call with a deadline."""
        with self._lock:
            tickets = [ticket for ticket, _ in self._open.values()]
            timed = any(ticket.timed for ticket in tickets)
            return (tickets[0].method, max(tickets[0].sent, self.idle_since)) if timed else None

    def settle(self, ticket: Ticket, outcome: Outcome) -> None:
        """Answer a call."""
        with self._lock:
            self._open.pop(ticket.number, None)
            self.idle_since = time.monotonic()
        self._monitor.settle(ticket, outcome)
        if ticket is self.ready or ticket is self.placed:
            self._announce()

    def end(self, how: str, exit: int | str | None = None) -> None:  # noqa: A002  the field's name
        """Settle `ended`, then all open tickets, because the worker has ended. A second call does nothing.

        Args:
            how: completes "worker 0 (life 0) …"; ignored if there is a `kill_reason`.
            exit: an exit code, minus a signal's number, or words.
        """
        with self._lock:
            if self._loss is not None:
                return
            self._loss = self.kill_reason or how, exit
            open_tickets = [ticket for ticket, _ in self._open.values()]
            self._open.clear()
        self._monitor.settle(self.ended, self._loss_error())
        self._announce()
        self.release()
        for ticket in open_tickets:
            self._monitor.settle(ticket, self._loss_error())

    def _announce(self) -> None:
        """Wake waiting threads, so that they process an event of this handle."""
        self.events.append(self)
        self._monitor.wake()

    @property
    def exists(self) -> bool:
        """Return whether the worker or its thread still runs."""
        return not self.ended.done if self.thread is None else self.thread.is_alive()

    def call(self, ticket: Ticket, args: Sequence[Any]) -> None:
        """Send a call; see `Backend.call`."""
        raise NotImplementedError

    def kill(self, reason: str) -> None:
        """End the worker; see `Backend.kill`."""
        self.kill_reason = self.kill_reason or reason
        if not self.ended.done:
            self.stop(self.kill_reason)

    def stop(self, reason: str) -> None:
        """End the worker, whatever it is doing."""
        self.end(reason)

    def join(self, timeout: float) -> None:
        """Wait until nothing is left of a killed worker."""
        if self.thread is None:
            self._monitor.wait([self.ended], timeout)
        elif self.thread is not threading.current_thread():
            self.thread.join(timeout)

    def release(self) -> None:
        """Release the resources of a worker that has ended. Overridden by backends that hold some."""

    def _loss_error(self) -> Error:
        """Return a `WorkerLost` for one call: each gets its own exception, because tracebacks are added to it."""
        assert self._loss is not None
        reason, exit = self._loss  # noqa: A001  the field's name
        worker, life = self.name
        return Error(WorkerLost(f"{self.name} {reason}", worker=worker, life=life, exit=exit))


class Shared(Protocol):
    """A value in memory that all workers of a backend can read; small when it travels as an argument.

    Workers read it while they answer the call that brought it, not later. Its memory is released when this process
    drops it and the calls in flight are answered.
    """

    def open(self) -> Any:
        """Return the value; its arrays are views that must not be written."""


class Backend(TicketMonitor, ABC):
    """Spawns, calls, waits for and kills workers, and shares values with them.

    Attributes:
        owner: the process that uses it; a fork cannot use its workers.
    """

    close_s = 10.0
    """How long closing waits until the workers have ended."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._handles: list[Any] = []
        self._closed = False
        self.owner = Owner()

    @property
    def unusable_reason(self) -> str | None:
        """Return why no worker can live here any more, or `None`."""
        return None

    @property
    def abandoned(self) -> tuple[str, ...]:
        """Return the names of workers that were killed but still run."""
        return ()

    def spawn(self, job: Job) -> Any:
        """Start a worker and return its `Handle` at once; `handle.ready` is settled when it is built.

        Raises:
            TypeError: `initializer` or `build` cannot be pickled, where they have to be.
            ValueError: the backend does not take an option in `resources`.
            Closed: the backend is closed, or belongs to the process that this one was forked from.
        """
        self.owner.require_here("these workers")
        with self._lock:
            if self._closed:
                raise Closed("no worker can be spawned: the backend is closed")
            handle = self._start(job)
            self._handles = [*(other for other in self._handles if other.exists), handle]
        return handle

    def call(self, handle: Any, method: str, *args: Any) -> Ticket:
        """Send a call and return at once; earlier calls are answered first. A dead worker answers with `WorkerLost`.

        Large arrays and tensors among the arguments travel as buffers; the body of a returned `Parcel` stays where it
        is until `Received.open`.

        Raises:
            TypeError: an argument cannot be pickled.
            Closed: the worker belongs to the process that this one was forked from.
        """
        self.owner.require_here("these workers")
        ticket = Ticket(handle.name, method)
        handle.call(ticket, args)
        return ticket

    @abstractmethod
    def share(self, value: Any) -> Shared:
        """Put a value once where all workers can read it. It may change afterwards."""

    def shared_counters(self, size: int) -> Shared | None:  # noqa: ARG002  no memory is shared
        """Share an array of int64 zeros, which this process opens and writes while workers read it.

        Whole numbers are read and written at once. `None` where workers do not see memory of this process.
        """
        return None

    def kill(self, handle: Any) -> None:
        """Kill the worker; twice is fine. Nothing of it is left when its tickets are settled."""
        self.owner.require_here("these workers")
        handle.kill("was killed")

    def describe_resources(self, handle: Any) -> tuple[str, str]:  # noqa: ARG002  all are alike on one machine
        """Describe the resources that the worker needs, and the free ones."""
        return "a place on this machine", f"{os.cpu_count()} CPUs, however busy"

    def close(self) -> None:
        """Kill all workers and release everything. Twice is fine; a fork of the driver does nothing."""
        if not self.owner.is_here:
            return
        with self._lock:
            self._closed = True
        for handle in self._handles:
            handle.kill("was ended: its backend is closed")
        self._join_workers()

    def _join_workers(self) -> None:
        deadline = time.monotonic() + self.close_s
        for handle in self._handles:
            handle.join(max(0.0, deadline - time.monotonic()))

    @abstractmethod
    def _start(self, job: Job) -> Handle:
        """Start a worker; see `spawn`."""
