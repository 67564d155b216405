"""Places within this process: the thread of whoever waits, or a thread for each worker.

    inline: spawn, call ─▶ one queue ─▶ wait: carries out the oldest call, until one of its tickets is done
    thread: spawn, call ─▶ queue of the worker ─▶ its thread carries out the calls

Values are copied where elsewhere they would cross a border.
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
from swath.workers.hosting import Hosted, attempted, described
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.packing import Parcel, owned, pack, unpack
from swath.workers.tickets import Interrupted, Received, Ticket, TicketMonitor

Queued: TypeAlias = Callable[..., None]
"""A call that waits for its turn; its arguments are exceptions that leave it open."""


class LocalHandle(Handle):
    """A worker of this process.

    Args:
        job: how it is brought up.
        monitor: where its tickets are settled.
        queue: takes calls, which are carried out elsewhere, one after another.
    """

    def __init__(self, job: Job, monitor: TicketMonitor, queue: Callable[[Queued], None]) -> None:
        super().__init__(job, monitor)
        self._hosted = Hosted(job.name)
        self._queue = queue
        queue(partial(self._carry_out, self.ready, self._build))

    def call(self, ticket: Ticket, args: Sequence[Any]) -> None:
        """Queue a call; its arguments are copied."""
        given = copy.deepcopy(args)
        if self.opened(ticket):
            self._queue(partial(self._carry_out, ticket, partial(self._answer, ticket.method, given)))

    def let_go(self) -> None:
        """Let go of the object."""
        self._hosted = Hosted(self.job.name)

    def _carry_out(self, ticket: Ticket, work: Callable[[], Outcome], *raised: type[BaseException]) -> None:
        """Have a call answered; what is `raised` leaves, all else that is no answer ends the worker."""
        if ticket.done:
            return
        try:
            outcome = work()
        except raised:
            raise
        except BaseException as error:  # noqa: BLE001  as in a process
            self.end(f"ended itself with {error!r}", repr(error))
        else:
            self.settle(ticket, outcome)

    def _build(self) -> Outcome:
        before = Value(None) if self.job.before is None else attempted(self.job.before)
        return self._hosted.build(before, lambda: self.job.build)

    def _answer(self, method: str, args: Sequence[Any]) -> Outcome:
        """What comes back shares no memory with the worker but the body of a parcel."""
        outcome = self._hosted.answer(method, lambda: args)
        return outcome if isinstance(outcome, Error) else attempted(_handed_over, outcome.value)


class LocalShared:
    """What all workers of this process see.

    Args:
        open: gives it.
    """

    def __init__(self, open: Callable[[], Any]) -> None:  # noqa: A002  the seam's name
        self.open = open

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalShared:
        return self


class LocalBackend(Backend):
    """A backend of this process."""

    def share(self, value: Any) -> LocalShared:
        """Copy the value once; the arrays of the copy cannot be written."""
        packed = pack(value)
        buffers = [memoryview(buffer).toreadonly() for buffer in owned(packed.buffers)]
        return LocalShared(lambda: unpack(packed.head, buffers))

    def watched(self, size: int) -> LocalShared:
        """See `Backend.watched`."""
        numbers = np.zeros(size, dtype=np.int64)
        return LocalShared(lambda: numbers)


class InlineBackend(LocalBackend):
    """Workers that need no thread and no process: nothing runs until somebody waits. The reference for other places.

    Several threads may wait: one at a time carries out calls. `KeyboardInterrupt` leaves `wait`; the call that it broke
    off is carried out anew when somebody waits again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._queue: deque[Queued] = deque()

    def wait(
        self, tickets: Sequence[Ticket], timeout: float | None = None, interrupted: Interrupted | None = None
    ) -> list[Ticket]:
        """Carry out queued calls, oldest first, until one of the tickets is done.

        A call is never broken off, and one is carried out however little time there is: whoever polls gets somewhere.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            done = [ticket for ticket in tickets if ticket.done]
            if done or (interrupted is not None and interrupted()):
                return done
            carried_out = self._carry_out_oldest()
            left = None if until is None else max(0.0, until - time.monotonic())
            if not carried_out:
                super().wait(tickets, left, lambda: self._free() or (interrupted is not None and interrupted()))
            if left == 0:
                return [ticket for ticket in tickets if ticket.done]

    def _begin(self, job: Job) -> LocalHandle:
        return LocalHandle(job, self, self._enqueue)

    def _enqueue(self, call: Queued) -> None:
        self._queue.append(call)
        self.wake()

    def _free(self) -> bool:
        """Whether there is something to carry out, and nobody at it."""
        return bool(self._queue) and not self._turn.locked()

    def _carry_out_oldest(self) -> bool:
        """Whether there was something to carry out, and nobody at it."""
        if not (self._queue and self._turn.acquire(blocking=False)):
            return False
        try:
            if self._queue:
                self._queue[0](KeyboardInterrupt)
                self._queue.popleft()
        finally:
            self._turn.release()
            self.wake()  # others who wait may go on with the queue
        return True


class ThreadHandle(LocalHandle):
    """A worker and its thread."""

    thread: threading.Thread

    def __init__(self, job: Job, monitor: TicketMonitor) -> None:
        self._calls: SimpleQueue[Queued | None] = SimpleQueue()
        super().__init__(job, monitor, self._calls.put)
        self.thread = threading.Thread(target=self._serve, name=f"swath {described(job.name)}", daemon=True)
        self.thread.start()

    def let_go(self) -> None:
        """Have the thread end once it is idle: it cannot be ended from outside."""
        super().let_go()
        self.thread.name += ", abandoned"
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None and not self.ended.done:
            call()


class ThreadBackend(LocalBackend):
    """Workers that share this process: its memory, its random generators, its interpreter lock.

    Threads that are busy for a second after they were to end are abandoned.
    """

    close_s = 1.0

    @property
    def left_behind(self) -> tuple[str, ...]:
        """The names of threads that were to end and are busy still."""
        return tuple(one.thread.name for one in self._handles if one.ended.done and one.there)

    def _begin(self, job: Job) -> ThreadHandle:
        return ThreadHandle(job, self)


def _handed_over(value: Any) -> Any:
    if not isinstance(value, Parcel):
        return copy.deepcopy(value)
    return Received(copy.deepcopy(value.head), lambda: value.body)
