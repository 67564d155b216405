"""The seam for places: what a backend does, wherever its workers live.

    spawn(job) ─▶ Handle ─▶ call(handle, method, …) ─▶ Ticket ─▶ wait(tickets, deadline) ─▶ those that are done
                     └────▶ kill(handle): at once; its open tickets end with WorkerLost

A worker is any object: `job.build()` makes it, over there, and calls are answered by its methods one after another, in
the order in which they were sent. An exception in a method is an answer; the worker lives on. A death answers all that
was open. Backends may be used from any thread.
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
from swath.workers.hosting import described
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.tickets import Name, Ticket, TicketMonitor


@dataclass(frozen=True)
class Job:
    """How to bring a worker up.

    Attributes:
        build: makes the object whose methods are called; runs in the worker, travels by cloudpickle.
        name: which life of which worker.
        threads: torch's threads in a worker that has a process of its own.
        before: runs first in the worker, before `build` is even unpickled; on Ray, and in the processes of a bare
            backend, before torch and numpy are imported.
        resources: what the place is asked for, as `ray.remote` options; empty elsewhere.
        public: methods that can be called on the worker by others; on Ray with `handle.method.remote()`.
        registered: name and namespace under which others find the worker, which then outlives this process; on Ray.
        joins: another process has begun and built what is registered; it is joined.
    """

    build: Callable[[], Any]
    name: Name
    threads: int = 1
    before: Callable[[], Any] | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    public: tuple[str, ...] = ()
    registered: tuple[str, str] | None = None
    joins: bool = False


class Handle:
    """What we hold of one life of a worker, and its tickets that are not settled. Used by any thread.

    Args:
        job: how it was brought up.
        monitor: where its tickets are settled.

    Attributes:
        placed: settled when its place has had room for it, and it has begun; at once, where there is always room.
        ready: settled when the worker is built, with `None`, or with what `before` or `build` raised.
        ended: settled when this life is over, with `WorkerLost`; where idle deaths are not seen, with the next call.
        lasts: whether it lives on when its backend is closed.
        free_since: when it has answered last, in seconds of `time.monotonic`.
        thread: a daemon that it lives in, or that follows it, if there is one.
        news: takes this handle when it is placed, ready or ended; whoever looks after it takes it out.
        killed: why we end it, if we do; completes "worker 0 (life 0) …", as whatever says how it has ended.
    """

    def __init__(self, job: Job, monitor: TicketMonitor | None = None) -> None:
        self.job, self.name = job, job.name
        self.lasts = job.registered is not None
        self.placed = Ticket(job.name, "place")
        self.placed.settle(Value(None))
        self.ready = Ticket(job.name, "build")
        self.ended = Ticket(job.name, "live")
        self.free_since = -inf
        self.thread: threading.Thread | None = None
        self.news: deque[Handle] = deque()
        self.killed: str | None = None
        self._monitor = monitor or TicketMonitor()
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Ticket, Any]] = {}
        self._loss: tuple[str, int | str | None] | None = None
        self.opened(self.ready)

    def opened(self, ticket: Ticket, needed: Any = None) -> bool:
        """Note that the ticket is to be settled; it is at once if the worker has ended, which is false.

        Args:
            ticket: likewise.
            needed: kept until then.
        """
        with self._lock:
            if self._loss is None:
                self._open[ticket.number] = ticket, needed
                return True
        self._monitor.settle(ticket, self._lost())
        return False

    def ticket(self, number: int) -> Ticket:
        """The ticket of this number, which is not settled."""
        return self._open[number][0]

    def busy_with(self) -> tuple[str, float] | None:
        """If the worker has a call with a deadline to answer: its oldest call, and since when it can be at that."""
        with self._lock:
            tickets = [ticket for ticket, _ in self._open.values()]
            timed = any(ticket.timed for ticket in tickets)
            return (tickets[0].method, max(tickets[0].sent, self.free_since)) if timed else None

    def settle(self, ticket: Ticket, outcome: Outcome) -> None:
        """Answer a call."""
        with self._lock:
            self._open.pop(ticket.number, None)
            self.free_since = time.monotonic()
        self._monitor.settle(ticket, outcome)
        if ticket is self.ready or ticket is self.placed:
            self._announce()

    def end(self, how: str, exit: int | str | None = None) -> None:  # noqa: A002  the field's name
        """Settle `ended`, then all open tickets, since the worker has ended. Twice is fine.

        Args:
            how: in words; ignored if it was killed.
            exit: an exit code, minus a signal's number, or words.
        """
        with self._lock:
            if self._loss is not None:
                return
            self._loss = self.killed or how, exit
            left = [ticket for ticket, _ in self._open.values()]
            self._open.clear()
        self._monitor.settle(self.ended, self._lost())
        self._announce()
        self.let_go()
        for ticket in left:
            self._monitor.settle(ticket, self._lost())

    def _announce(self) -> None:
        """Something has become of it; whoever waits is to look."""
        self.news.append(self)
        self._monitor.wake()

    @property
    def there(self) -> bool:
        """Whether anything of it is left."""
        return not self.ended.done if self.thread is None else self.thread.is_alive()

    def call(self, ticket: Ticket, args: Sequence[Any]) -> None:
        """See `Backend.call`."""
        raise NotImplementedError

    def kill(self, why: str) -> None:
        """See `Backend.kill`."""
        self.killed = self.killed or why
        if not self.ended.done:
            self.stop(self.killed)

    def stop(self, why: str) -> None:
        """Bring about its end, whatever it does."""
        self.end(why)

    def join(self, timeout: float) -> None:
        """Wait until nothing is left of a worker that was killed."""
        if self.thread is None:
            self._monitor.wait([self.ended], timeout)
        elif self.thread is not threading.current_thread():
            self.thread.join(timeout)

    def let_go(self) -> None:
        """The worker has ended. To be overridden by places that hold something of it."""

    def _lost(self) -> Error:
        """The answer to one call; each has an exception of its own, since tracebacks gather on those."""
        assert self._loss is not None
        how, exit = self._loss  # noqa: A001  the field's name
        worker, life = self.name
        return Error(WorkerLost(f"{described(self.name)} {how}", worker=worker, life=life, exit=exit))


class Shared(Protocol):
    """A value that was put where all workers of a backend can read it; small when it travels as an argument.

    Workers read it while they answer the call that brought it, not later. Its memory goes when nobody has it here, and
    the calls in flight are answered.
    """

    def open(self) -> Any:
        """The value; its arrays are views that must not be written."""


class Backend(TicketMonitor, ABC):
    """Where workers live and tickets are settled: spawn, call, wait, kill, and a place for what many read.

    Attributes:
        owner: the process that uses it; a fork can do nothing with its workers.
    """

    close_s = 10.0
    """How long closing waits for lives to be over."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._handles: list[Any] = []
        self._closed = False
        self.owner = Owner()

    @property
    def gone(self) -> str | None:
        """Why nothing can live here any more, if so."""
        return None

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What lives are called that are over but cannot be ended."""
        return ()

    def spawn(self, job: Job) -> Any:
        """Begin a worker's life and return its `Handle` at once; `handle.ready` says when it is up.

        Raises:
            TypeError: `before` or `build` cannot be pickled, where they have to be.
            ValueError: `resources` has an option that the place does not take.
            Closed: the backend is closed, or belongs to the process that this one was forked from.
        """
        self.owner.require_here("these workers")
        with self._lock:
            if self._closed:
                raise Closed("no worker can be spawned: the backend is closed")
            handle = self._begin(job)
            self._handles = [*(one for one in self._handles if one.there), handle]
        return handle

    def call(self, handle: Any, method: str, *args: Any) -> Ticket:
        """Send a call and return at once; it waits for those sent before. A dead worker answers with `WorkerLost`.

        Large arrays and tensors among the arguments travel as buffers; a `Parcel` that comes back stays where it is
        until `Received.open`.

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
        """Put a value where all workers can read it, once, however many will. It may change afterwards."""

    def watched(self, size: int) -> Shared:
        """So many int64 numbers, all 0, to be opened here and written while workers look at them.

        Whole numbers are read and written at once.

        Raises:
            TypeError: workers elsewhere cannot see memory of this process.
        """
        raise TypeError(f"workers elsewhere cannot watch {size} numbers: they do not see memory of this process")

    def kill(self, handle: Any) -> None:
        """End the worker without asking it; twice is fine. Nothing of it is left when its tickets are settled."""
        self.owner.require_here("these workers")
        handle.kill("was killed")

    def room(self, handle: Any) -> tuple[str, str]:  # noqa: ARG002  all are alike on one machine
        """What the worker asks of its place, and what is free there, in words."""
        return "a place on this machine", f"{os.cpu_count()} CPUs, however busy"

    def close(self) -> None:
        """Kill all that is left; nothing of this backend remains. Twice is fine, so is a fork of the driver."""
        if not self.owner.is_here:
            return
        with self._lock:
            self._closed = True
        for handle in self._handles:
            handle.kill("was ended: its backend is closed")
        self._await_ends()

    def _await_ends(self) -> None:
        until = time.monotonic() + self.close_s
        for handle in self._handles:
            handle.join(max(0.0, until - time.monotonic()))

    @abstractmethod
    def _begin(self, job: Job) -> Handle:
        """Begin a worker's life; see `spawn`."""
