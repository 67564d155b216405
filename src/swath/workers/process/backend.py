"""Workers in processes of this machine.

    driver ─ start ────────▶ fork server ─ forks, reaps ─▶ worker
      │                                                    │
      ├── call: any thread ──── a socket per worker ──────▶│ answers calls one after another
      └── a thread per worker: settles tickets ◀───────────┘ the fork server reports how it ended

Large arrays travel in nameless shared memory (`memory.py`), so that hundreds of calls fit into a socket. A fork of the
driver may create backends; it cannot use its parent's, which end with the parent.
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
from swath.workers.hosting import THREAD_SETTINGS, pickling, serialize_function
from swath.workers.packing import pack, unpack_reply
from swath.workers.process import fork_server
from swath.workers.process.memory import Arena, ArenaReader, ProcessShared
from swath.workers.process.worker import MAX_MESSAGE_BYTES, Answer, Call
from swath.workers.registered import with_registry
from swath.workers.tickets import Ticket, TicketMonitor

PRELOAD = ("torch", "tensordict", "gymnasium", "swath.workers.process.worker")

_SEND_TIMEOUT_S = 20.0
_MAX_RETURNED = 1000
_STANDARD_STREAMS = (1, 2)


class ProcessHandle(Handle):
    """A worker process and the thread that follows it until its end.

    Args:
        job: its start-up data.
        monitor: settles its tickets.
        server: forks it.
        arena: the driver's.

    Attributes:
        pid: id of its process, once it has one.
    """

    def __init__(self, job: Job, monitor: TicketMonitor, server: fork_server.ForkServer, arena: Arena) -> None:
        super().__init__(job, monitor)
        self.pid: int | None = None
        self._server, self._arena = server, arena
        self._sending = threading.Lock()
        with os.fdopen(os.memfd_create("swath"), "wb") as setup:
            setup.write(_setup(job))
            setup.seek(0)
            self._sock, worker_sock = fork_server.socket_pair()
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
            self._sock.settimeout(_SEND_TIMEOUT_S)
            name = f"swath {job.name}"
            with worker_sock:
                try:
                    self._reader = ArenaReader(os.memfd_create("swath"), mmap.ACCESS_WRITE)
                except OSError:
                    self._sock.close()
                    raise
                fds = [worker_sock.fileno(), setup.fileno(), arena.fd, self._reader.fd, *_STANDARD_STREAMS, *job.fds]
                server.send("start", self.ready.number, name, fds=fds)
        self.thread = threading.Thread(target=self._follow, name=f"{name} is followed", daemon=True)
        self.thread.start()

    def call(self, ticket: Ticket, args: Sequence[Any]) -> None:
        """Send a call; kill the worker if it reads none for 20 seconds."""
        if self.ended.done:  # there may be no arena any more
            self.add_ticket(ticket)
            return
        payload, lease = self._arena.payload(pack(args))
        with self._sending:
            if self.add_ticket(ticket, (lease, args)):  # shared values among them are needed until it is answered
                queue = self._reader.returned
                returned = [queue.popleft() for _ in range(min(len(queue), _MAX_RETURNED))]
                call: Call = (ticket.number, ticket.method, payload, returned)
                try:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the thread sees the end
                        self._sock.send(pickle.dumps(call))
                except TimeoutError:
                    self.kill(f"was killed: it reads no calls, and none could be sent for {_SEND_TIMEOUT_S:g} s")

    def stop(self, reason: str) -> None:  # noqa: ARG002  `kill_reason` has it
        """Kill the process, now or as soon as it has started."""
        if self.pid is not None:
            fork_server.kill_group(self.pid)

    def release(self) -> None:
        """Close socket and arena."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # ends a send that waits for room
        with self._sending:
            self._sock.close()
            self._reader.close()

    def _follow(self) -> None:
        """Settle tickets until it is known how the worker has ended."""
        was_killed, end = False, None
        while end is None:
            try:
                end = self._process_message(self._sock.recv(MAX_MESSAGE_BYTES))
            except ConnectionResetError:  # it left calls unread; its earlier messages come now
                continue
            except TimeoutError:
                if was_killed and self.pid is not None:
                    self.kill_reason = f"{self.kill_reason}, and was not seen to end"
                    end = "unknown"
                was_killed = self.kill_reason is not None
            except Exception as error:  # noqa: BLE001  later messages cannot be trusted either
                self.kill(f"was killed, since what it sent cannot be read: {error!r}")
        self.end(fork_server.describe_exit(end), end)

    def _process_message(self, message: bytes) -> int | str | None:
        """Process an answer of the worker or a report of the fork server; return how the worker ended, if it did.

        The fork server reports the pid, then the exit code; or, in words, why there is no process. An empty message
        means that both have ended.
        """
        if not message:
            ending = f"was lost with the process that starts workers, which {self._server.end()}"
            self.kill_reason = self.kill_reason or ending
            return "unknown"
        content: Answer | int | str = pickle.loads(message)  # noqa: S301  our own worker wrote it
        if isinstance(content, tuple):
            number, head, body = content
            load = None if body is None else self._reader.loader(body)
            self.settle(self.ticket(number), unpack_reply(partial(self._reader.copy, head), load))
            return None
        if isinstance(content, str) or self.pid is not None:
            return content
        self.pid = content
        if self.kill_reason:
            self.stop(self.kill_reason)
        return None


class ProcessBackend(Backend):
    """Runs workers in processes, forked by a server that has imported their modules.

    Args:
        preload: modules for the server to import; none may start threads when imported. Without any the server is bare:
            its workers start before torch and numpy are imported.
    """

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        super().__init__()
        self._preload = preload
        self._arena = Arena()
        self._server = fork_server.join(self, preload)

    def shared_counters(self, size: int) -> ProcessShared:
        """Share an array of int64 zeros; see `Backend.shared_counters`."""
        return ProcessShared(np.zeros(size, dtype=np.int64), self._arena, writable=True)

    def share(self, value: Any) -> ProcessShared:
        """Write the value into a block that all workers can read."""
        return ProcessShared(value, self._arena)

    def _start(self, job: Job) -> ProcessHandle:
        try:
            if not self._server.usable:
                self._server = fork_server.join(self, self._preload)
            return ProcessHandle(job, self, self._server, self._arena)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            needed = f"two file descriptors here, two in the process that forks it; RLIMIT_NOFILE={limit}"
            message = f"{job.name} cannot be started ({error.strerror}): it needs {needed}"
            remedy = "close files, use fewer workers, or raise the limit (ulimit -n)"
            raise PlacementFailed(f"{message}; {remedy}") from error

    def _join_workers(self) -> None:
        is_last = fork_server.leave(self, self._server)
        if is_last and not any(worker.pid for worker in self._handles):
            self._server.end()  # it is importing modules and does not read; it has forked no worker
        super()._join_workers()
        if is_last:
            self._server.end()
            super()._join_workers()
        self._arena.close()


def _setup(job: Job) -> bytes:
    """Pickle the start-up data of a worker, with the present environment of this process."""
    initializer = serialize_function(job.initializer)
    with pickling(f"build={job.build!r}", "a process"):
        build = pack(with_registry(job.build))
    settings = {**os.environ, **dict.fromkeys(THREAD_SETTINGS, str(job.threads))}
    authkey = bytes(multiprocessing.current_process().authkey)  # for objects of the caller's managers
    method = multiprocessing.get_start_method(allow_none=True)
    environment = settings, sys.path, sys.argv, str(Path.cwd()), method, authkey
    return pickle.dumps((environment, job.name, job.threads, initializer, (build.head, build.copy_buffers())))
