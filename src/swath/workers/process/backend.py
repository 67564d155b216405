"""Workers in processes of this machine.

    driver ─ start ────────▶ fork server ─ forks, reaps ─▶ worker
      │                                                    │
      ├── call: any thread ──── a socket for each ────────▶│ answers one after another
      └── a thread for each: settles tickets ◀─────────────┘ and, when it has ended, the fork server says how

Large arrays travel in nameless shared memory (`memory.py`), so that hundreds of calls fit into a socket. A fork of the
driver may make backends of its own; with those of its parent it can do nothing, and they end with the parent.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import multiprocessing
import os
import pickle
import resource
import socket
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from swath.errors import PlacementFailed
from swath.workers.base import Backend, Handle, Job
from swath.workers.hosting import THREAD_SETTINGS, described, sending, travelling
from swath.workers.packing import outcome_of, pack
from swath.workers.process import fork_server
from swath.workers.process.memory import Arena, ProcessShared, Window
from swath.workers.process.worker import LONGEST, Answer, Call
from swath.workers.registered import Registered
from swath.workers.tickets import Ticket, TicketMonitor

PRELOAD = ("torch", "tensordict", "gymnasium", "swath.workers.process.worker")

_PATIENCE_S = 20.0
_MOST_RETURNED = 1000
_MANY_DESCRIPTORS = 64
_STREAMS = (1, 2)


class ProcessHandle(Handle):
    """A worker process. A thread of its own follows it until it is over.

    Args:
        job: how it is brought up.
        monitor: where tickets are settled.
        server: forks it.
        arena: what the driver writes.

    Attributes:
        pid: its process, once it has one.
    """

    def __init__(self, job: Job, monitor: TicketMonitor, server: fork_server.ForkServer, arena: Arena) -> None:
        super().__init__(job, monitor)
        self.pid: int | None = None
        self._server, self._arena = server, arena
        self._sending = threading.Lock()
        with os.fdopen(os.memfd_create("swath"), "wb") as setup:
            setup.write(_setup(job))
            setup.seek(0)
            self._sock, theirs = fork_server.packets()
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
            self._sock.settimeout(_PATIENCE_S)
            name = f"swath {described(job.name)}"
            with theirs:
                try:
                    self._file = os.memfd_create("swath")
                except OSError:
                    self._sock.close()
                    raise
                self._window = Window(self._file, mmap.ACCESS_WRITE)
                fds = [theirs.fileno(), setup.fileno(), arena.fd, self._file, *_STREAMS]
                server.ask("start", self.ready.number, name, fds=fds)
        self.thread = threading.Thread(target=self._follow, name=f"{name} is followed", daemon=True)
        self.thread.start()

    def call(self, ticket: Ticket, args: Sequence[Any]) -> None:
        """Send a call; a worker that reads none for `_PATIENCE_S` is killed."""
        if self.ended.done:  # there may be no arena any more
            self.opened(ticket)
            return
        payload, lease = self._arena.sent(pack(args))
        with self._sending:
            if self.opened(ticket, (lease, args)):  # shared values among them are needed until it is answered
                returned = self._window.returned
                given = [returned.popleft() for _ in range(min(len(returned), _MOST_RETURNED))]
                call: Call = (ticket.number, ticket.method, payload, given)
                try:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the thread sees the end
                        self._sock.send(pickle.dumps(call))
                except TimeoutError:
                    self.kill(f"was killed: it reads no calls, and none could be sent for {_PATIENCE_S:g} s")

    def stop(self, why: str) -> None:  # noqa: ARG002  it is said when the end is seen
        """Kill the process, now or as soon as there is one."""
        if self.pid is not None:
            fork_server.kill_group(self.pid)

    def let_go(self) -> None:
        """Close what is open."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # nobody waits for room in it any more
        with self._sending:
            self._sock.close()
            self._window.close()
            os.close(self._file)

    def _follow(self) -> None:
        """Settle what is answered until it is known how the worker has ended."""
        overdue, end = False, None
        while end is None:
            try:
                end = self._take_in(self._sock.recv(LONGEST))
            except ConnectionResetError:  # it left calls unread; what it said before comes now
                continue
            except TimeoutError:
                if overdue and self.pid is not None:
                    self.killed = f"{self.killed}, and was not seen to end"
                    end = "unknown"
                overdue = self.killed is not None
            except Exception as error:  # noqa: BLE001  whatever it is: what follows cannot be trusted
                self.kill(f"was killed, since what it sent cannot be read: {error!r}")
        self.end(fork_server.in_words(end), end)

    def _take_in(self, message: bytes) -> int | str | None:
        """An answer, or news of the fork server: its process, then its exit code, or why there is none, which ends it.

        If there is no message at all both have ended.
        """
        if not message:
            self.killed = self.killed or f"was lost with the process that starts workers, which {self._server.end()}"
            return "unknown"
        news: Answer | int | str = pickle.loads(message)  # noqa: S301  our own worker wrote it
        if isinstance(news, tuple):
            number, head, body = news
            load = None if body is None else self._window.leased(body)
            self.settle(self.ticket(number), outcome_of(partial(self._window.own, head), load))
            return None
        if isinstance(news, str) or self.pid is not None:
            return news
        self.pid = news
        if self.killed:
            self.stop(self.killed)
        return None


class ProcessBackend(Backend):
    """Workers in processes of their own, forked by a server that has imported what they need.

    Args:
        preload: modules that the server imports, so that workers need not; none that starts threads when imported.
            With none at all it is a bare server, whose workers begin before torch and numpy are imported.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        super().__init__()
        self._preload = preload
        self._arena = Arena()
        self._server = fork_server.join(self, preload)

    def watched(self, size: int) -> ProcessShared:
        """See `Backend.watched`."""
        return ProcessShared(np.zeros(size, dtype=np.int64), self._arena, writable=True)

    def share(self, value: Any) -> ProcessShared:
        """Write the value into a block that all workers can read."""
        return ProcessShared(value, self._arena)

    def room(self, handle: ProcessHandle) -> tuple[str, str]:
        """Name file descriptors where there are few, else what `Backend.room` names."""
        free = _free_descriptors()
        wanted, room = super().room(handle)
        return wanted, room if free >= _MANY_DESCRIPTORS else _in_words(free)

    def _begin(self, job: Job) -> ProcessHandle:
        try:
            if not self._server.usable:
                self._server = fork_server.join(self, self._preload)
            return ProcessHandle(job, self, self._server, self._arena)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            wanted, room = "two file descriptors here, two in the process that forks it", _in_words(_free_descriptors())
            why = f"{described(job.name)} cannot be started ({error.strerror}): it needs {wanted}; there is {room}"
            raise PlacementFailed(f"{why}; close files, use fewer workers, or raise the limit (ulimit -n)") from error

    def _await_ends(self) -> None:
        last = fork_server.leave(self, self._server)
        if last and not any(worker.pid for worker in self._handles):
            self._server.end()  # it imports, and does not read; it has forked none
        super()._await_ends()
        if last:
            self._server.end()
            super()._await_ends()
        self._arena.close()


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _free_descriptors() -> int:
    """Count the file descriptors that this process may still open, if it could open the folder that says so."""
    try:
        return _limit() - len(os.listdir("/proc/self/fd"))  # noqa: PTH208  names alone
    except OSError:
        return 0


def _in_words(free: int) -> str:
    return f"room for {max(free, 0)} more file descriptors in this process (RLIMIT_NOFILE={_limit()})"


def _setup(job: Job) -> bytes:
    """What a worker is to be: in which surroundings, which are those of its caller now, and how it is built."""
    before = travelling(job.before)
    with sending(f"build={job.build!r}", "a process"):
        build = pack(Registered.here(job.build))
    settings = {**os.environ, **dict.fromkeys(THREAD_SETTINGS, str(job.threads))}
    authkey = bytes(multiprocessing.current_process().authkey)  # for what a manager of the caller holds
    method = multiprocessing.get_start_method(allow_none=True)
    surroundings = settings, sys.path, sys.argv, str(Path.cwd()), method, authkey
    return pickle.dumps((surroundings, job.name, job.threads, before, (build.head, build.copies())))
