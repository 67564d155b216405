"""What one backend has of its driver's nursery."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Callable, Sequence

from swath.workers.process.messages import Ended, Fork, Forked, Kill, Preload, Ready
from swath.workers.process.nursery_process import join, leave, module_path
from swath.workers.process.reader import Line, Reader
from swath.workers.process.wire import Frame

_END_S = 2.5


class Nursing:
    """A wire to the nursery.

    Args:
        reader: who reads what it says.
        preload: modules that it imports.
        heard: called in the reader's thread with what it says.
        gone: called there when the nursery is dead.

    Attributes:
        exit: the nursery's exit code, once it is dead.
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
        self._nursery, sock = join(bare=not preload)
        self._line = Line(reader, sock, self._told, self._ended)
        self._line.send(pickle.dumps(Preload(tuple(preload), module_path())))

    def fork(self, worker: int, sock: socket.socket) -> None:
        """Ask for a worker, which writes to our standard output and error; its end of its wire is given away."""
        self._line.send(pickle.dumps(Fork(worker)), [sock.detach(), *_standard_streams()])

    def kill(self, worker: int) -> None:
        """Ask for a worker's end."""
        self._line.send(pickle.dumps(Kill(worker)))

    def end(self) -> bool:
        """End all workers; whether that was seen. In the reader's thread, which waits for it."""
        if self.exit is None:
            self._line.read()  # what has come, but was not heard of: that it is ready, say, and has forked workers
        if self.exit is not None:
            return True
        seen = not self._ready or self._line.finish(_END_S)
        self._line.close()
        at_once = not self._ready and sys.platform == "linux"  # it imports, and has no ear; workers die with it
        leave(self._nursery, at_once=at_once or not seen)
        return seen

    def _told(self, frame: Frame) -> None:
        news: Ready | Forked | Ended = pickle.loads(frame.body)  # noqa: S301  our own nursery wrote it
        if isinstance(news, Ready):
            self._ready = True
        else:
            self._heard(news)

    def _ended(self, broken: Exception | None) -> None:  # noqa: ARG002  its exit tells as much
        self._line.close()
        self.exit = self._nursery.reap()
        leave(self._nursery, at_once=True)
        self._gone(self)


def _standard_streams() -> list[int]:
    try:
        out = os.dup(1)
    except OSError:  # a driver without them
        return []
    try:
        return [out, os.dup(2)]
    except OSError:
        os.close(out)
        return []
