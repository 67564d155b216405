"""Workers in the thread of whoever waits for them: nothing runs until somebody waits.

spawn, call ─▶ queue ─▶ wait: carries out the oldest call, until one of its tickets is done
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from swath.workers.base import Handle, Job
from swath.workers.hosting import Loss
from swath.workers.local import LocalBackend, LocalHandle, QueuedCall
from swath.workers.tickets import Ticket


class InlineBackend(LocalBackend):
    """Workers that need no thread and no process; the reference for all other places.

    Several threads may wait: one at a time carries out calls. `KeyboardInterrupt` leaves `wait`; the call that it broke
    off is carried out anew when somebody waits again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._queue: deque[tuple[LocalHandle, QueuedCall]] = deque()
        self._handles: set[LocalHandle] = set()
        self._running = False

    def spawn(self, job: Job) -> Handle:
        """Queue the worker's start.

        Raises:
            Closed: the backend is closed.
        """
        self.require_open()
        handle = LocalHandle(job)
        self._handles.add(handle)
        self._enqueue(handle, QueuedCall(handle.ready))
        return handle

    def call(self, handle: Handle, method: str, *args: Any) -> Ticket:
        """Queue a call; its arguments are copied."""
        assert isinstance(handle, LocalHandle)
        call = QueuedCall(Ticket(handle.name, method), method, copy.deepcopy(args))
        self._enqueue(handle, call)
        return call.ticket

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

    def kill(self, handle: Handle) -> None:
        """Forget the worker; a call that another thread is carrying out is abandoned."""
        assert isinstance(handle, LocalHandle)
        self._end(handle, Loss(handle.name, "was killed"))

    def room(self, handle: Handle) -> tuple[str, str]:  # noqa: ARG002  all are alike
        """Nothing is needed."""
        return "this process", "this process"

    def close(self) -> None:
        """Forget all workers."""
        self._closed = True
        for handle in list(self._handles):
            self._end(handle, Loss(handle.name, "was ended: its backend is closed"))

    def _enqueue(self, handle: LocalHandle, call: QueuedCall) -> None:
        ended = handle.opened(call.ticket)
        if ended is not None:
            self._board.settle(call.ticket, ended.error())
            return
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
                self._carry_out(handle, call)
        finally:
            self._running = False
            self._board.wake()  # others who wait may go on with the queue
        return True

    def _carry_out(self, handle: LocalHandle, call: QueuedCall) -> None:
        try:
            outcome = handle.carry_out(call)
        except KeyboardInterrupt:
            with self._lock:
                self._queue.appendleft((handle, call))
            raise
        except BaseException as error:  # noqa: BLE001  as in a process: it ends the worker, not the caller
            self._end(handle, Loss(handle.name, f"ended itself with {error!r}", exit=repr(error)))
        else:
            handle.answered(call.ticket)
            self._board.settle(call.ticket, outcome)

    def _end(self, handle: LocalHandle, loss: Loss) -> None:
        self._handles.discard(handle)
        for ticket in handle.end(loss):
            self._board.settle(ticket, loss.error())
