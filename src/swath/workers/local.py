"""Backends within this process: workers run in the thread that waits, or in a thread each.

    inline: spawn, call ─▶ one queue ─▶ wait: runs the oldest call, until one of its tickets is settled
    thread: spawn, call ─▶ queue of the worker ─▶ its thread runs the calls

Values are copied where other backends would send them to another process.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from swath.workers.base import Backend, Handle, Job
from swath.workers.hosting import WorkerObject, run_and_capture
from swath.workers.outcome import Outcome, Value
from swath.workers.packing import Parcel, pack, unpack, writable_copies
from swath.workers.tickets import Interrupted, Received, Ticket, TicketMonitor

QueuedCall: TypeAlias = Callable[..., None]
"""A queued call; it raises exceptions of the types that it is given, and then stays in the queue to run again."""


class LocalHandle(Handle):
    """A worker of this process.

    Args:
        job: its start-up data.
        monitor: settles its tickets.
        queue: a function that adds a call to the queue of its thread or backend.
    """

    def __init__(self, job: Job, monitor: TicketMonitor, queue: Callable[[QueuedCall], None]) -> None:
        super().__init__(job, monitor)
        self._object = WorkerObject(job.name)
        self._queue = queue
        queue(partial(self._run, self.ready, self._build))

    def call(self, ticket: Ticket, args: Sequence[Any]) -> None:
        """Queue a call with copies of its arguments."""
        copied = copy.deepcopy(args)
        if self.add_ticket(ticket):
            self._queue(partial(self._run, ticket, partial(self._answer, ticket.method, copied)))

    def release(self) -> None:
        """Drop the object."""
        self._object = WorkerObject(self.job.name)

    def _run(self, ticket: Ticket, work: Callable[[], Outcome], *reraised: type[BaseException]) -> None:
        """Answer a call; exceptions that are no answer end the worker, except for those to be raised again."""
        if ticket.done:
            return
        try:
            outcome = work()
        except reraised:
            raise
        except BaseException as error:  # noqa: BLE001  it would end a process
            self.end(f"ended itself with {error!r}", repr(error))
        else:
            if not self.ended.done:  # `end` settles the tickets of a worker that was ended meanwhile
                self.settle(ticket, outcome)

    def _build(self) -> Outcome:
        initializer = self.job.initializer
        initialized = Value(None) if initializer is None else run_and_capture(initializer)
        return self._object.build(initialized, lambda: self.job.build)

    def _answer(self, method: str, args: Sequence[Any]) -> Outcome:
        """Call the method; the answer shares no memory with the worker except for the body of a parcel."""
        outcome = self._object.answer(method, lambda: args)
        if isinstance(outcome, Value):
            return run_and_capture(_copy, outcome.value)
        return outcome if outcome.counts is None else copy.deepcopy(outcome)  # an `Error` that the method returned


class LocalShared:
    """A shared value of this process.

    Args:
        open: returns the value.
    """

    def __init__(self, open: Callable[[], Any]) -> None:  # noqa: A002  the interface's name
        self.open = open

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalShared:
        return self


class LocalBackend(Backend):
    """A backend of this process."""

    def share(self, value: Any) -> LocalShared:
        """Copy the value once; the arrays of the copy cannot be written."""
        packed = pack(value)
        buffers = [memoryview(buffer).toreadonly() for buffer in writable_copies(packed.buffers)]
        return LocalShared(lambda: unpack(packed.head, buffers))

    def shared_counters(self, size: int) -> LocalShared:
        """Share an array of int64 zeros; see `Backend.shared_counters`."""
        return LocalShared(np.zeros(size, dtype=np.int64).view)  # each view is of the same memory


class InlineBackend(LocalBackend):
    """Runs workers in the threads that wait for them. The reference for other backends.

    Several threads may wait: one at a time runs calls. `KeyboardInterrupt` leaves `wait`; the interrupted call runs
    again in the next wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running = threading.Lock()
        self._queue: deque[QueuedCall] = deque()

    def wait(
        self, tickets: Sequence[Ticket], timeout: float | None = None, interrupted: Interrupted | None = None
    ) -> list[Ticket]:
        """Run queued calls, oldest first, until one of the tickets is settled.

        Calls run to their end, and at least one runs whatever the timeout, so that polling makes progress.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            done = [ticket for ticket in tickets if ticket.done]
            if done or (interrupted is not None and interrupted()):
                return done
            has_run = self._run_oldest()
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not has_run:
                super().wait(tickets, remaining, lambda: self._can_run() or (interrupted is not None and interrupted()))
            if remaining == 0:
                return [ticket for ticket in tickets if ticket.done]

    def _start(self, job: Job) -> LocalHandle:
        return LocalHandle(job, self, self._enqueue)

    def _enqueue(self, call: QueuedCall) -> None:
        self._queue.append(call)
        self.wake()

    def _can_run(self) -> bool:
        """Return whether there is a call that no other thread runs."""
        return bool(self._queue) and not self._running.locked()

    def _run_oldest(self) -> bool:
        """Run the oldest call; return false if there is none, or another thread runs it."""
        if not (self._queue and self._running.acquire(blocking=False)):
            return False
        try:
            if self._queue:
                self._queue[0](KeyboardInterrupt)
                self._queue.popleft()
        finally:
            self._running.release()
            self.wake()  # other waiting threads may go on with the queue
        return True


class ThreadHandle(LocalHandle):
    """A worker and its thread."""

    thread: threading.Thread

    def __init__(self, job: Job, monitor: TicketMonitor) -> None:
        self._calls: SimpleQueue[QueuedCall | None] = SimpleQueue()
        super().__init__(job, monitor, self._calls.put)
        self.thread = threading.Thread(target=self._serve, name=f"swath {job.name}", daemon=True)
        self.thread.start()

    def release(self) -> None:
        """End the thread once it is idle: a thread cannot be ended from outside."""
        super().release()
        self.thread.name += ", abandoned"
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None and not self.ended.done:
            call()


class ThreadBackend(LocalBackend):
    """Runs workers in threads, which share the memory, random generators and interpreter lock of this process.

    Threads that are still busy one second after the backend is closed are abandoned.
    """

    close_s = 1.0

    @property
    def abandoned(self) -> tuple[str, ...]:
        """Return the names of threads whose workers were killed but which are still busy."""
        return tuple(handle.thread.name for handle in self._handles if handle.ended.done and handle.exists)

    def _start(self, job: Job) -> ThreadHandle:
        return ThreadHandle(job, self)


def _copy(value: Any) -> Any:
    if not isinstance(value, Parcel):
        return copy.deepcopy(value)
    return Received(copy.deepcopy(value.head), lambda: value.body)
