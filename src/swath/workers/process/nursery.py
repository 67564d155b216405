"""A process of one thread that has imported what workers need, and forks one whenever it is asked to.

    driver ─ a wire for each backend ─▶ nursery
    backend ─ Fork + the worker's end of its wire ─▶ nursery ─ fork ─▶ worker
            ◀─ Forked, Ended ─────────────────────── (reaps)
            ─ Kill ────────────────────────────────▶

A fork takes milliseconds where a fresh interpreter takes seconds; all backends of a driver have one nursery. When the
wire of a backend ends its workers are killed, and when they are reaped the nursery closes its end. When the driver is
gone, however it went, all workers are killed and the nursery ends.
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
from collections import deque
from functools import partial
from importlib import import_module
from typing import NoReturn

from swath.workers.process import child
from swath.workers.process.messages import Ended, Fork, Forked, Kill, Preload, Ready
from swath.workers.process.wire import Ended as WireEnded
from swath.workers.process.wire import Frame, Wire, close_all

_LOOK_FOR_DRIVER_S = 1.0


class Nursery:
    """What runs in the nursery.

    Args:
        wire: to the driver; each frame on it brings the wire of a backend.
        driver: its process.
    """

    def __init__(self, wire: Wire, driver: int) -> None:
        self._wire = wire
        self._driver = driver
        self._selector = selectors.DefaultSelector()
        self._families: list[Family] = []
        self._own_fds = [wire.fileno(), self._selector.fileno()]

    def serve(self) -> None:
        """Fork and reap until the driver is gone; then kill what is left."""
        self._watch_children()
        self._selector.register(self._wire, selectors.EVENT_READ, self._adopt)
        with contextlib.suppress(WireEnded):
            while os.getppid() == self._driver:
                for key, _ in self._selector.select(_LOOK_FOR_DRIVER_S):
                    key.data()
        for family in self._families:
            family.kill()
        for family in self._families:
            family.reap(wait=True)

    def not_for_workers(self) -> list[int]:
        """Descriptors that workers must not keep."""
        return [*self._own_fds, *self._wire.held, *(fd for family in self._families for fd in family.fds)]

    def over(self, family: Family) -> None:
        """A backend is gone, and so are its workers."""
        self._families.remove(family)
        family.wire.close()

    def _adopt(self) -> None:
        for frame in self._wire.arrived():
            family = Family(self, Wire(socket.socket(fileno=frame.fds[0]), patient=True))
            self._families.append(family)
            self._selector.register(family.wire, selectors.EVENT_READ, partial(self._listen, family))

    def _listen(self, family: Family) -> None:
        if not family.obey():
            self._selector.unregister(family.wire)
            family.kill()
            family.leave()

    def _reap(self) -> None:
        self._woken.recv(1 << 12)
        for family in list(self._families):
            family.reap()

    def _watch_children(self) -> None:
        self._woken, waker = socket.socketpair()
        for end in (self._woken, waker):
            end.settimeout(0)
            self._own_fds.append(end.fileno())
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)


class Family:
    """The workers of one backend.

    Args:
        nursery: where they are.
        wire: to the backend.
    """

    def __init__(self, nursery: Nursery, wire: Wire) -> None:
        self.wire = wire
        self._nursery = nursery
        self._pids: dict[int, int] = {}
        self._orders: deque[Frame] = deque()
        self._left = False

    def obey(self) -> bool:
        """Do what the backend asks for; false if it will ask for no more."""
        try:
            for frame in self.wire.arrived(all_of_it=True):
                self._orders.append(frame)
        except WireEnded:
            close_all(fd for order in self._orders for fd in order.fds)  # nobody is there to hear of these workers
            self._orders.clear()  # what others open now may have the same numbers
            return False
        while self._orders:
            order = self._orders.popleft()
            self._carry_out(pickle.loads(order.body), order.fds)  # noqa: S301  our own driver wrote it
        return True

    @property
    def fds(self) -> list[int]:
        """Descriptors of the backend and of workers to come."""
        return [self.wire.fileno(), *self.wire.held, *(fd for order in self._orders for fd in order.fds)]

    def kill(self) -> None:
        """Kill all workers."""
        for pid in self._pids.values():
            kill_group(pid)

    def leave(self) -> None:
        """The backend is gone: be over as soon as all workers are."""
        self._left = True
        self.reap()

    def reap(self, *, wait: bool = False) -> None:
        """See which workers have ended, and tell."""
        for worker, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
            if ended:
                kill_group(pid)  # what it has left behind; its number is not given anew while any of that lives
                del self._pids[worker]
                self._tell(Ended(worker, os.waitstatus_to_exitcode(status)))
        if self._left and not self._pids:
            self._nursery.over(self)

    def _carry_out(self, order: Preload | Fork | Kill, fds: list[int]) -> None:
        if isinstance(order, Preload):
            _import(order)
            self._tell(Ready())
        elif isinstance(order, Fork):
            self._fork(order.worker, fds)
        elif order.worker in self._pids:
            kill_group(self._pids[order.worker])

    def _fork(self, worker: int, fds: list[int]) -> None:
        nursery = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(Ended(worker, f"could not be forked: {error}"))
        else:
            if pid == 0:
                child.live(fds, nursery, self._nursery.not_for_workers())
            self._pids[worker] = pid
            self._tell(Forked(worker, pid))
        finally:
            close_all(fds)

    def _tell(self, news: Ready | Forked | Ended) -> None:
        with contextlib.suppress(WireEnded):
            self.wire.send(pickle.dumps(news))


def kill_group(pid: int) -> None:
    """Kill a worker and all that it has started."""
    for kill in (os.killpg, os.kill):  # it is in its own group as soon as it runs
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone already; macOS says so of zombies
            kill(pid, signal.SIGKILL)


def serve(sock: socket.socket, driver: int) -> NoReturn:
    """Be a nursery until the driver is gone."""
    code = 1
    if sys.stderr is not None:
        faulthandler.enable()
    try:
        Nursery(Wire(sock, patient=True), driver).serve()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)  # nothing here is worth a tidy end of the interpreter


def _import(preload: Preload) -> None:
    sys.path[:] = preload.path
    for module in preload.modules:
        with contextlib.suppress(Exception):  # it is raised again in the worker that needs it
            import_module(module)
    gc.collect()
    gc.freeze()  # a worker's collections leave alone what it shares with this process
