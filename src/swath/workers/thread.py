"""Workers in threads of this process.

spawn, call ─▶ queue of the worker ─▶ its thread carries out the calls ─▶ tickets
"""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from swath.workers.base import Handle, Job
from swath.workers.hosting import Loss
from swath.workers.local import LocalBackend, LocalHandle, QueuedCall
from swath.workers.tickets import Ticket

_JOIN_S = 1.0


class ThreadHandle(LocalHandle):
    """A worker and its thread.

    Attributes:
        queue: calls; `None` ends the thread.
        was_busy: whether something was open when it was ended.
        thread: a daemon.
    """

    def __init__(self, job: Job, serve: Callable[[ThreadHandle], None]) -> None:
        super().__init__(job)
        self.was_busy = False
        self.queue: queue.SimpleQueue[QueuedCall | None] = queue.SimpleQueue()
        name = f"swath worker {job.name.worker} (life {job.name.life})"
        self.thread = threading.Thread(target=serve, args=(self,), name=name, daemon=True)

    def __repr__(self) -> str:
        """A status line."""
        return super().__repr__().replace("ended", "abandoned, but busy") if self.abandoned else super().__repr__()

    @property
    def abandoned(self) -> bool:
        """Whether it was killed while it was busy, and is busy still: threads cannot be ended from outside."""
        return self.was_busy and self.thread.is_alive()


class ThreadBackend(LocalBackend):
    """Workers that share this process: its memory, its random generators, its interpreter lock."""

    def __init__(self) -> None:
        super().__init__()
        self._handles: set[ThreadHandle] = set()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """The names of threads that were to end and are busy still."""
        return tuple(handle.thread.name for handle in list(self._handles) if handle.abandoned)

    def spawn(self, job: Job) -> Handle:
        """Start a thread that builds the worker.

        Raises:
            Closed: the backend is closed.
        """
        self.require_open()
        handle = ThreadHandle(job, self._serve)
        handle.opened(handle.ready)
        handle.queue.put(QueuedCall(handle.ready))
        self._handles.add(handle)
        handle.thread.start()
        return handle

    def call(self, handle: Handle, method: str, *args: Any) -> Ticket:
        """Hand the worker's thread a call; its arguments are copied."""
        assert isinstance(handle, ThreadHandle)
        call = QueuedCall(Ticket(handle.name, method), method, copy.deepcopy(args))
        ended = handle.opened(call.ticket)
        if ended is None:
            handle.queue.put(call)
        else:
            self._board.settle(call.ticket, ended.error())
        return call.ticket

    def kill(self, handle: Handle) -> None:
        """End the thread once it is idle; what it is busy with is abandoned, and its result ignored."""
        assert isinstance(handle, ThreadHandle)
        self._end(handle, Loss(handle.name, "was killed"))

    def room(self, handle: Handle) -> tuple[str, str]:  # noqa: ARG002  all are alike
        """A thread."""
        return "a thread", f"{threading.active_count()} threads are running"

    def close(self) -> None:
        """End all threads; those that are busy for a second more are abandoned."""
        self._closed = True
        handles = list(self._handles)
        for handle in handles:
            self._end(handle, Loss(handle.name, "was ended: its backend is closed"))
        until = time.monotonic() + _JOIN_S
        for handle in handles:
            if handle.thread is not threading.current_thread():
                handle.thread.join(max(0.0, until - time.monotonic()))

    def _serve(self, handle: ThreadHandle) -> None:
        while (call := handle.queue.get()) is not None and not handle.ended.done:
            try:
                outcome = handle.carry_out(call)
            except BaseException as error:  # noqa: BLE001  as in a process: it ends the worker
                self._end(handle, Loss(handle.name, f"ended itself with {error!r}", exit=repr(error)))
            else:
                handle.answered(call.ticket)
                self._board.settle(call.ticket, outcome)
        self._handles.discard(handle)

    def _end(self, handle: ThreadHandle, loss: Loss) -> None:
        tickets = handle.end(loss)
        if not tickets:
            return
        handle.was_busy = len(tickets) > 1  # the end of its life is open in any case
        if handle.was_busy:
            handle.thread.name += ", abandoned"
        handle.queue.put(None)
        for ticket in tickets:
            self._board.settle(ticket, loss.error())
