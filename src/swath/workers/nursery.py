"""A process of one thread that has imported what workers need, and forks one whenever it is asked to.

    driver ─ Fork + the worker's end of its wire ─▶ nursery ─ fork ─▶ worker
           ◀─ Forked, Ended ─────────────────────── (reaps)
           ─ Kill ────────────────────────────────▶

A fork takes milliseconds where a fresh interpreter takes seconds. When the driver is gone, however it went, the nursery
kills all workers and ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import selectors
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import NoReturn

from swath.workers import child
from swath.workers.messages import Ended, Fork, Forked, Kill, Preload, Ready
from swath.workers.wire import Ended as WireEnded
from swath.workers.wire import Wire

_LOOK_FOR_DRIVER_S = 1.0


class Nursery:
    """What runs in the nursery.

    Args:
        wire: to the driver.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._pids: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._own_fds = [wire.fileno(), self._selector.fileno()]
        self._driver = -1

    def serve(self) -> None:
        """Fork and reap until the driver is gone; then kill what is left."""
        with contextlib.suppress(WireEnded):
            self._prepare()
            self._run()
        for pid in self._pids.values():
            kill_group(pid)
        for pid in self._pids.values():
            os.waitpid(pid, 0)

    def _prepare(self) -> None:
        preload: Preload = pickle.loads(self._wire.receive().body)  # noqa: S301  our own driver wrote it
        self._driver = preload.driver
        for module in preload.modules:
            with contextlib.suppress(Exception):  # it is raised again in the worker that needs it
                import_module(module)
        gc.collect()
        gc.freeze()  # a worker's collections leave alone what it shares with this process
        self._tell(Ready())

    def _run(self) -> None:
        self._watch_children()
        self._selector.register(self._wire, selectors.EVENT_READ, self._obey)
        patience = None if self._watch_driver() else _LOOK_FOR_DRIVER_S
        self._obey()  # orders may have come together with the first message
        while os.getppid() == self._driver:
            for key, _ in self._selector.select(patience):
                key.data()

    def _watch_children(self) -> None:
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.settimeout(0)
            self._own_fds.append(end.fileno())
        self._woken, self._waker = reader, writer
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._selector.register(reader, selectors.EVENT_READ, self._reap)

    def _watch_driver(self) -> bool:
        """Whether its death wakes the selector even if somebody else holds its end of the wire, a fork of it say."""
        try:
            fd = os.pidfd_open(self._driver)
        except (AttributeError, OSError):
            return False
        self._own_fds.append(fd)
        self._selector.register(fd, selectors.EVENT_READ, lambda: None)
        return True

    def _obey(self) -> None:
        for frame in self._wire.arrived():
            order: Fork | Kill = pickle.loads(frame.body)  # noqa: S301  our own driver wrote it
            if isinstance(order, Fork):
                self._fork(order.worker, frame.fds[0])
            elif order.worker in self._pids:
                kill_group(self._pids[order.worker])

    def _fork(self, worker: int, fd: int) -> None:
        nursery = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(Ended(worker, f"could not be forked: {error}"))
        else:
            if pid == 0:
                child.live(fd, nursery, [*self._own_fds, *self._wire.held])
            with contextlib.suppress(OSError):  # it does the same; either is first
                os.setpgid(pid, pid)
            self._pids[worker] = pid
            self._tell(Forked(worker, pid))
        finally:
            os.close(fd)

    def _reap(self) -> None:
        self._woken.recv(1 << 12)
        for worker, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                kill_group(pid)  # what it has left behind; its number is not given anew while any of that lives
                del self._pids[worker]
                self._tell(Ended(worker, os.waitstatus_to_exitcode(status)))

    def _tell(self, news: Ready | Forked | Ended) -> None:
        self._wire.send(pickle.dumps(news))


def kill_group(pid: int) -> None:
    """Kill a worker and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone already; macOS says so of zombies
        os.killpg(pid, signal.SIGKILL)


def serve(sock: socket.socket) -> NoReturn:
    """Be a nursery until the driver is gone."""
    code = 1
    if sys.stderr is not None:
        faulthandler.enable()
    try:
        Nursery(Wire(sock, patient=True)).serve()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)  # nothing here is worth a tidy end of the interpreter
