"""Places within this process: the thread of whoever waits, or a thread for each worker.

    inline: spawn, call ─▶ one queue ─▶ wait: carries out the oldest call, until one of its tickets is done
    thread: spawn, call ─▶ queue of the worker ─▶ its thread carries out the calls

Values are copied where elsewhere they would cross a border.
"""

from __future__ import annotations

import copy
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from swath.errors import Closed
from swath.workers.base import Handle, Job, OnBoard, OwingHandle
from swath.workers.hosting import Hosted, attempted
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.packing import Parcel, owned, pack, unpack
from swath.workers.tickets import Board, Received, Ticket

_JOIN_S = 1.0


class QueuedCall(NamedTuple):
    """A call that waits for its turn: where its outcome goes, and what to do."""

    ticket: Ticket
    work: Callable[[], Outcome]


class LocalHandle(OwingHandle):
    """A worker of this process."""

    def __init__(self, job: Job, board: Board) -> None:
        super().__init__(job, board)
        self._hosted = Hosted(job.name)

    def let_go(self, *, busy: bool) -> None:  # noqa: ARG002
        """Let go of the object."""
        self._hosted = Hosted(self.job.name)

    def build(self) -> Outcome:
        """Make the object."""
        before = Value(None) if self.job.before is None else attempted(self.job.before)
        return self._hosted.build(before, lambda: self.job.build)

    def answer(self, method: str, args: Sequence[Any]) -> Outcome:
        """Call a method; what comes back shares no memory with the worker but the body of a parcel."""
        outcome = self._hosted.answer(method, lambda: args)
        return outcome if isinstance(outcome, Error) else attempted(_handed_over, outcome.value)


class LocalShared:
    """What all workers of this process see.

    Args:
        open: gives it.

    Attributes:
        values: numbers, where they are shared.
    """

    values: Any = None

    def __init__(self, open: Callable[[], Any]) -> None:  # noqa: A002  the seam's name
        self.open = open

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalShared:
        return self

    def release(self) -> None:
        """Its memory goes when nobody holds it any more."""


class LocalBackend(OnBoard):
    """A backend of this process."""

    def __init__(self) -> None:
        super().__init__(Board())
        self._handles: set[Any] = set()
        self._closed = False

    def spawn(self, job: Job) -> Handle:
        """Begin a worker's life.

        Raises:
            Closed: the backend is closed.
        """
        if self._closed:
            raise Closed("no worker can be spawned: the backend is closed")
        handle = self._begun(job)
        self._handles.add(handle)
        self._enqueue(handle, QueuedCall(handle.ready, handle.build))
        return handle

    def call(self, handle: Handle, method: str, *args: Any) -> Ticket:
        """Queue a call; its arguments are copied."""
        assert isinstance(handle, LocalHandle)
        ticket = Ticket(handle.name, method)
        given = copy.deepcopy(args)
        if handle.opened(ticket):
            self._enqueue(handle, QueuedCall(ticket, partial(handle.answer, method, given)))
        return ticket

    def kill(self, handle: Handle) -> None:
        """Forget the worker; the call that it is busy with is abandoned, and its result ignored."""
        assert isinstance(handle, LocalHandle)
        self._end(handle, "was killed")

    def close(self) -> None:
        """Forget all workers."""
        self._closed = True
        for handle in list(self._handles):
            self._end(handle, "was ended: its backend is closed")

    def share(self, value: Any) -> LocalShared:
        """Copy the value once; the arrays of the copy cannot be written."""
        packed = pack(value)
        buffers = [memoryview(buffer).toreadonly() for buffer in owned(packed.buffers)]
        return LocalShared(lambda: unpack(packed.head, buffers))

    def watched(self, size: int) -> LocalShared:
        """See `Backend.watched`."""
        numbers = np.zeros(size, dtype=np.int64)
        shared = LocalShared(lambda: numbers)
        shared.values = numbers
        return shared

    def _carry_out(self, handle: LocalHandle, call: QueuedCall, *raised: type[BaseException]) -> None:
        """Have the call answered; what is `raised` leaves, all else that is no answer ends the worker."""
        try:
            outcome = call.work()
        except raised:
            raise
        except BaseException as error:  # noqa: BLE001  as in a process
            self._end(handle, f"ended itself with {error!r}", repr(error))
        else:
            handle.settle(call.ticket, outcome)

    def _end(self, handle: LocalHandle, how: str, exit: str | None = None) -> None:  # noqa: A002  the field's name
        self._handles.discard(handle)
        handle.end(how, exit)

    @abstractmethod
    def _begun(self, job: Job) -> LocalHandle:
        """What is held of a new life."""

    @abstractmethod
    def _enqueue(self, handle: Any, call: QueuedCall) -> None:
        """Have a call carried out after those before it."""


class InlineBackend(LocalBackend):
    """Workers that need no thread and no process: nothing runs until somebody waits. The reference for other places.

    Several threads may wait: one at a time carries out calls. `KeyboardInterrupt` leaves `wait`; the call that it broke
    off is carried out anew when somebody waits again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._queue: deque[tuple[LocalHandle, QueuedCall]] = deque()
        self._running = False

    def wait(
        self,
        tickets: Sequence[Ticket],
        timeout: float | None = None,
        interrupted: Callable[[], bool] | None = None,
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
                self._board.wait(tickets, left, lambda: self._free() or (interrupted is not None and interrupted()))
            if left == 0:
                return [ticket for ticket in tickets if ticket.done]

    def room(self, handle: Handle) -> tuple[str, str]:  # noqa: ARG002  all are alike
        """Nothing is needed."""
        return "this process", "this process"

    def _begun(self, job: Job) -> LocalHandle:
        return LocalHandle(job, self._board)

    def _enqueue(self, handle: LocalHandle, call: QueuedCall) -> None:
        with self._lock:
            self._queue.append((handle, call))
        self._board.wake()

    def _free(self) -> bool:
        """Whether there is something to carry out, and nobody at it."""
        with self._lock:
            return bool(self._queue) and not self._running

    def _carry_out_oldest(self) -> bool:
        """Whether there was something to carry out, and nobody at it."""
        with self._lock:
            if self._running or not self._queue:
                return False
            handle, call = self._queue.popleft()
            self._running = True
        try:
            if not call.ticket.done:  # its worker may have ended
                self._carry_out(handle, call, KeyboardInterrupt)
        except KeyboardInterrupt:
            with self._lock:
                self._queue.appendleft((handle, call))
            raise
        finally:
            self._running = False
            self._board.wake()  # others who wait may go on with the queue
        return True


class ThreadHandle(LocalHandle):
    """A worker and its thread.

    Attributes:
        queue: calls; `None` ends the thread.
        was_busy: whether something was open when it was ended: threads cannot be ended from outside.
        thread: a daemon.
    """

    def __init__(self, job: Job, board: Board, serve: Callable[[ThreadHandle], None]) -> None:
        super().__init__(job, board)
        self.was_busy = False
        self.queue: SimpleQueue[QueuedCall | None] = SimpleQueue()
        name = f"swath worker {job.name.worker} (life {job.name.life})"
        self.thread = threading.Thread(target=serve, args=(self,), name=name, daemon=True)

    def let_go(self, *, busy: bool) -> None:
        """Have the thread end once it is idle."""
        super().let_go(busy=busy)
        self.was_busy = busy
        self.thread.name += ", abandoned" if busy else ""
        self.queue.put(None)


class ThreadBackend(LocalBackend):
    """Workers that share this process: its memory, its random generators, its interpreter lock."""

    def __init__(self) -> None:
        super().__init__()
        self._serving: set[ThreadHandle] = set()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """The names of threads that were to end and are busy still."""
        return tuple(one.thread.name for one in list(self._serving) if one.was_busy and one.thread.is_alive())

    def room(self, handle: Handle) -> tuple[str, str]:  # noqa: ARG002  all are alike
        """A thread."""
        return "a thread", f"{threading.active_count()} threads are running"

    def close(self) -> None:
        """End all threads; those that are busy for a second more are abandoned."""
        super().close()
        until = time.monotonic() + _JOIN_S
        for handle in list(self._serving):
            if handle.thread is not threading.current_thread():
                handle.thread.join(max(0.0, until - time.monotonic()))

    def _begun(self, job: Job) -> ThreadHandle:
        handle = ThreadHandle(job, self._board, self._serve)
        self._serving.add(handle)
        handle.thread.start()
        return handle

    def _enqueue(self, handle: ThreadHandle, call: QueuedCall) -> None:
        handle.queue.put(call)

    def _serve(self, handle: ThreadHandle) -> None:
        while (call := handle.queue.get()) is not None and not handle.ended.done:
            self._carry_out(handle, call)
        self._serving.discard(handle)


def _handed_over(value: Any) -> Any:
    if not isinstance(value, Parcel):
        return copy.deepcopy(value)
    return Received(copy.deepcopy(value.head), lambda: value.body)
