"""One thread that reads many wires, so that nobody polls.

Line.send: any thread, never waits ─▶ wire          what does not fit: the thread sends it when there is room
wire ─▶ thread ─▶ Line's callbacks                  frames, then the end
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

from swath.workers.process.wire import Ended, Frame, Wire, close_all

_log = logging.getLogger("swath")


class Reader:
    """The thread; a daemon that ends with `close`, and takes its last steps then.

    Args:
        last: called in the thread when it ends, whatever the reason, with the exception if there was one.
    """

    def __init__(self, last: Callable[[BaseException | None], None]) -> None:
        self._last = last
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.settimeout(0)
        self._posted: deque[Callable[[], None]] = deque()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="swath process workers", daemon=True)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake_up)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def discard(self) -> None:
        """Let go of what it holds, when the thread has ended or never began."""
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def post(self, function: Callable[[], None]) -> None:
        """Have the thread call it soon."""
        self._posted.append(function)
        with contextlib.suppress(OSError):  # it is about to wake anyway, or has ended
            self._waker.send(b"\0")

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Have the thread call it then; only the thread itself may ask."""
        heappush(self._due, (time.monotonic() + seconds, next(self._order), function))

    def watch(self, line: Line, *, writing: bool) -> None:
        """Look out for frames of the line, or also for room to send; only the thread itself may ask."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        if line.watched:
            self._selector.modify(line.wire, events, line.attend)
        elif not line.over:
            self._selector.register(line.wire, events, line.attend)
            line.watched = True

    def unwatch(self, line: Line) -> None:
        """Look at it no longer; only the thread itself may ask."""
        if line.watched:
            self._selector.unregister(line.wire)
            line.watched = False

    def close(self, timeout: float) -> None:
        """End the thread and wait for it, though not longer than that, nor in the thread itself."""
        self._stopped = True
        self.post(lambda: None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        broke = None
        try:
            while not self._stopped:
                self._turn()
        except BaseException as error:  # noqa: BLE001  nobody else would hear of it
            broke = error
            _log.exception("the thread that reads from worker processes broke; they are ended")
        finally:
            self._stopped = True
            self._last(broke)
            self.discard()

    def _turn(self) -> None:
        patience = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
        for key, events in self._selector.select(patience):
            if self._stopped:
                return
            key.data(events)
        while self._posted:
            self._posted.popleft()()
        while self._due and self._due[0][0] <= time.monotonic():
            heappop(self._due)[2]()

    def _wake_up(self, events: int) -> None:  # noqa: ARG002  it can only be read
        self._woken.recv(1 << 12)


class Line:
    """A wire that a reader looks after.

    Args:
        reader: who does.
        sock: this end; the line's own from now on.
        arrived: called in the reader's thread with each frame.
        ended: called there once, when there will be none, with the exception if a frame was broken.
    """

    def __init__(
        self,
        reader: Reader,
        sock: socket.socket,
        arrived: Callable[[Frame], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self.wire = Wire(sock, patient=False)
        self.watched = False
        self.over = False
        self._reader = reader
        self._arrived = arrived
        self._ended = ended
        self._lock = threading.Lock()
        reader.post(lambda: reader.watch(self, writing=False))

    def send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send a frame, soon if not now; from any thread. Nobody hears of it when the other side is gone."""
        with self._lock, contextlib.suppress(Ended):  # the reader sees the end
            if self.over:
                close_all(fds)
            elif not self.wire.send(body, fds):
                self._reader.post(lambda: self._reader.watch(self, writing=True))

    def attend(self, events: int) -> None:
        """Do what there is to do; in the reader's thread."""
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ:
            self.read()

    def read(self, *, all_of_it: bool = False) -> None:
        """Hand on what has arrived; in the reader's thread."""
        broken: Exception | None = None
        try:
            for frame in self.wire.arrived(all_of_it=all_of_it):
                self._arrived(frame)
        except Ended:
            pass
        except Exception as error:  # noqa: BLE001  whatever it is: what follows cannot be trusted
            broken = error
        else:
            return
        self._reader.unwatch(self)
        self._ended(broken)

    def finish(self, timeout: float) -> bool:
        """Send no more, and wait until the other side closes its end; whether it did. In the reader's thread."""
        self._reader.unwatch(self)
        with self._lock:
            return self.wire.finish(timeout)

    def close(self) -> None:
        """Close this end; in the reader's thread."""
        self._reader.unwatch(self)
        with self._lock:
            self.over = True
            self.wire.close()

    def _flush(self) -> None:
        with self._lock, contextlib.suppress(Ended):
            if not self.wire.flush():
                return
        self._reader.watch(self, writing=False)
