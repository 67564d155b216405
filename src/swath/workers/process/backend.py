"""Workers in processes of this machine.

    driver ─ start, kill ─▶ fork server ─ forks, reaps ─▶ worker
      │                                                    │
      ├── call: any thread ──── a socket for each ────────▶│ answers one after another
      └── one thread: settles tickets ◀────────────────────┘

Large arrays travel in nameless shared memory (`memory.py`). A fork of the driver may make backends of its own; with
those of its parent it can do nothing, and they end with the parent.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swath.errors import Closed
from swath.workers.base import Handle, Job, OnBoard
from swath.workers.first import travelling
from swath.workers.garbage import GarbageWatch
from swath.workers.hosting import THREAD_SETTINGS, sending
from swath.workers.packing import pack
from swath.workers.process import fork_server
from swath.workers.process.handle import ProcessHandle
from swath.workers.process.memory import Pool, ProcessShared, ProcessWatched
from swath.workers.process.message import new_memory
from swath.workers.process.reader import Reader
from swath.workers.tickets import Board, Ticket

PRELOAD = ("torch", "tensordict", "gymnasium", "swath.workers.process.worker")

_CLOSE_S = 10.0


class ProcessBackend(OnBoard):
    """Workers in processes of their own, forked by a server that has imported what they need.

    Args:
        preload: modules that the server imports, so that workers need not; none that starts threads when imported.
            With none at all it is a bare server, whose workers begin before torch and numpy are imported.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        super().__init__(Board())
        self._running = _Running(preload)
        self._garbage = GarbageWatch(self, self._running.close, at_exit=True)

    def spawn(self, job: Job) -> Handle:
        """Begin a worker's life and return at once.

        Raises:
            TypeError: `before` or `build` cannot be pickled.
            Closed: the backend is closed, or belongs to the process that this one was forked from.
        """
        with os.fdopen(new_memory(0), "wb") as file:
            file.write(_setup(job))
            file.seek(0)
            return self._running.spawn(job, self._board, file.fileno())

    def call(self, handle: Handle, method: str, *args: Any) -> Ticket:
        """Send a call and return at once.

        Raises:
            TypeError: an argument cannot be pickled.
        """
        assert isinstance(handle, ProcessHandle)
        self._running.require_driver()
        ticket = Ticket(handle.name, method)
        handle.call(ticket, args)
        return ticket

    def watched(self, size: int) -> ProcessWatched:
        """See `Backend.watched`."""
        return ProcessWatched(size, self._running.pool)

    def share(self, value: Any) -> ProcessShared:
        """Write the value into a block that all workers can read."""
        return ProcessShared(value, self._running.pool)

    def kill(self, handle: Handle) -> None:
        """Have the worker killed; its tickets are settled when that is done."""
        assert isinstance(handle, ProcessHandle)
        self._running.require_driver()
        handle.kill("was killed")

    def room(self, handle: Handle) -> tuple[str, str]:  # noqa: ARG002  all are alike
        """A process, on however many CPUs."""
        return "a process", f"{os.cpu_count()} CPUs of this machine"

    def close(self) -> None:
        """Kill all that is left. Happens by itself when the backend is collected, or the interpreter ends."""
        if self._running.driver == os.getpid():
            self._running.close()
            self._garbage.end()


class _Running:
    """What ends with a backend, to which it must not refer.

    Args:
        preload: see `ProcessBackend`.

    Attributes:
        pool: the driver's blocks.
        driver: the process that began it; a fork of that has its sockets too, and must not speak in its name.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self.pool = Pool()
        self.driver = os.getpid()
        self._preload = preload
        self._lock = threading.Lock()
        self._closed = False
        self._workers: list[ProcessHandle] = []
        self._server = fork_server.join(self._preload)
        self._reader = Reader()

    def require_driver(self) -> None:
        """Raise `Closed` in a fork of the driver."""
        if os.getpid() != self.driver:
            raise Closed(
                f"these workers belong to process {self.driver}, of which this one is a fork; make others here"
            )

    def spawn(self, job: Job, board: Board, setup: int) -> ProcessHandle:
        """See `Backend.spawn`."""
        self.require_driver()
        with self._lock:
            if self._closed:
                raise Closed("no worker can be spawned: the backend is closed")
            if not self._server.usable:
                fork_server.leave(self._server)
                self._server = fork_server.join(self._preload)
            handle = ProcessHandle(job, self._server, board, self.pool, self._reader, setup)
            self._workers = [*(worker for worker in self._workers if not worker.ended.done), handle]
        return handle

    def close(self) -> None:
        """See `Backend.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for worker in self._workers:
            worker.kill("was ended: its backend is closed")
        last = fork_server.leave(self._server)
        if last and not any(worker.pid for worker in self._workers):
            self._server.end()  # it imports, and does not read; it has forked none
        self._reader.close(_CLOSE_S)
        if last:
            self._server.end()
        self.pool.close()


def _setup(job: Job) -> bytes:
    """What a worker is to be: in which surroundings, which are those of its caller now, and how it is built."""
    before = travelling(job.before)
    with sending(f"build={job.build!r}", "a process"):
        build = pack(job.build)
    settings = {**os.environ, **dict.fromkeys(THREAD_SETTINGS, str(job.threads))}
    authkey = bytes(multiprocessing.current_process().authkey)  # for what a manager of the caller holds
    method = multiprocessing.get_start_method(allow_none=True)
    surroundings = settings, sys.path, sys.argv, str(Path.cwd()), method, authkey
    return pickle.dumps((surroundings, job.name, job.threads, before, (build.head, build.copies())))
