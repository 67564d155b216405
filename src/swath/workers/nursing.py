"""The driver's side of a nursery: one process that forks workers."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from swath.errors import PlacementFailed
from swath.workers import entry
from swath.workers.messages import Ended, Fork, Forked, Kill, Preload, Ready
from swath.workers.reader import Line, Reader
from swath.workers.wire import Frame

_END_S = 5.0
_SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",  # no library starts threads before the forks
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # no import touches the CUDA driver, which does not survive forks
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS
}


class Nursing:
    """A nursery as the driver sees it.

    Args:
        reader: who reads what it says.
        preload: modules that it imports.
        heard: called in the reader's thread with what it says.
        gone: called there when it is dead and reaped, with its exit code.
    """

    def __init__(
        self,
        reader: Reader,
        preload: Sequence[str],
        heard: Callable[[Forked | Ended], None],
        gone: Callable[[Nursing], None],
    ) -> None:
        self.exit: int | None = None
        self._heard = heard
        self._gone = gone
        self._ready = False
        here, there = socket.socketpair()
        with there:
            self._process = _started(there)
        here.sendall(entry.greeting([str(part) or str(Path.cwd()) for part in sys.path]))
        self._line = Line(reader, here, self._told, self._ended)
        self._line.send(pickle.dumps(Preload(tuple(preload), os.getpid())))

    def fork(self, worker: int, sock: socket.socket) -> None:
        """Ask for a worker; its end of its wire is given away."""
        self._line.send(pickle.dumps(Fork(worker)), [sock.detach()])

    def kill(self, worker: int) -> None:
        """Ask for a worker's end."""
        self._line.send(pickle.dumps(Kill(worker)))

    def end(self) -> None:
        """End it with all its workers, and wait for that; in the reader's thread."""
        self._line.close()
        if not self._ready and sys.platform == "linux":
            self._process.kill()  # it imports, and has no ear; if it has workers by now, they die with it
        try:
            self.exit = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.exit = self._process.wait()

    def _told(self, frame: Frame) -> None:
        news: Ready | Forked | Ended = pickle.loads(frame.body)  # noqa: S301  our own nursery wrote it
        if isinstance(news, Ready):
            self._ready = True
        else:
            self._heard(news)

    def _ended(self, broken: Exception | None) -> None:  # noqa: ARG002  its exit tells as much
        self.end()
        self._gone(self)


def _started(sock: socket.socket) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise PlacementFailed("this interpreter does not know its own path (sys.executable), so it can start no other")
    return subprocess.Popen(  # noqa: S603  ourselves
        [sys.executable, "-P", str(Path(entry.__file__)), str(sock.fileno())],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **_SURROUNDINGS},
        pass_fds=[sock.fileno()],
        start_new_session=True,  # Ctrl-C in the terminal is the driver's
    )
