"""The process that is the nursery, as its driver sees it: begun for the first backend, ended with the last."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from swath.errors import PlacementFailed
from swath.workers.process import entry
from swath.workers.process.wire import Ended, Wire

_END_S = 2.5
_TRIES = 3
_SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",  # no library starts threads before the forks
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # no import touches the CUDA driver, which does not survive forks
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS
}


class NurseryProcess:
    """The process, and the wire on which it is told of backends. Any thread may use it.

    Args:
        bare: whether nothing is ever imported in it.

    Attributes:
        bare: likewise.
        driver: the process that began it; a fork of that must begin its own.
        users: backends that have a wire to it.
    """

    def __init__(self, *, bare: bool) -> None:
        self.bare = bare
        self.driver = os.getpid()
        self.users = 0
        self._process, sock = _started()
        self._wire = Wire(sock, patient=True)

    @property
    def usable(self) -> bool:
        """Whether it is ours, and has not ended."""
        return self.driver == os.getpid() and self._process.poll() is None

    def adopt(self, sock: socket.socket) -> bool:
        """Give it a backend's wire; false if it is dead."""
        try:
            self._wire.send(b"", [sock.detach()])
        except Ended:
            self._wire.close()
            return False
        self.users += 1
        return True

    def end(self, *, at_once: bool) -> None:
        """End it and wait for that.

        Args:
            at_once: without giving it time.
        """
        self._wire.close()
        if at_once:
            self._process.kill()
        self.reap()

    def reap(self) -> int:
        """Wait for its end, not for long; its exit code."""
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def join(*, bare: bool = False) -> tuple[NurseryProcess, socket.socket]:
    """The nursery of this process, begun if there is none, and a wire to it.

    Args:
        bare: the one in which nothing is imported.
    """
    with _lock:
        for _ in range(_TRIES):
            nursery = _nurseries.get(bare)
            if nursery is None or not nursery.usable:
                nursery = _nurseries[bare] = NurseryProcess(bare=bare)
            here, there = socket.socketpair()
            if nursery.adopt(there):
                return nursery, here
            here.close()
    raise PlacementFailed(
        f"the process that starts workers ended {_TRIES} times as soon as it was begun; look for what ends new "
        "processes here, memory limits for example"
    )


def leave(nursery: NurseryProcess, *, at_once: bool) -> None:
    """A wire is no longer used. With the last one the process ends, and this waits for it.

    Args:
        nursery: whose.
        at_once: kill the process rather than give it time.
    """
    with _lock:
        nursery.users -= 1
        if nursery.users:
            return
        if _nurseries.get(nursery.bare) is nursery:
            del _nurseries[nursery.bare]
    nursery.end(at_once=at_once)


def module_path() -> list[str]:
    """Where modules are found, also for processes that begin elsewhere."""
    return [str(part) or str(Path.cwd()) for part in sys.path]


def _started() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A fresh interpreter, and a socket to it."""
    if not sys.executable:
        raise PlacementFailed("this interpreter does not know its own path (sys.executable), so it can start no other")
    here, there = socket.socketpair()
    try:
        process = subprocess.Popen(  # noqa: S603  ourselves
            [sys.executable, "-P", entry.__file__, str(there.fileno()), str(os.getpid()), json.dumps(module_path())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_SURROUNDINGS},
            pass_fds=[there.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal is the driver's
        )
    except BaseException:
        here.close()
        raise
    finally:
        there.close()
    return process, here


_lock = threading.Lock()
_nurseries: dict[bool, NurseryProcess] = {}  # by whether they are bare
