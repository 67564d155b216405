"""One thread that reads what all workers of a backend send, and does what is due."""

from __future__ import annotations

import contextlib
import sched
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any


class Reader:
    """The thread; a daemon. What it calls must not wait: all workers share it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._due = sched.scheduler(time.monotonic)
        self._woken, self._waker = socket.socketpair()
        self._waker.settimeout(0)
        self._closing = threading.Event()
        self.watch(self._woken, lambda: self._woken.recv(1 << 12))
        self._thread = threading.Thread(target=self._run, name="swath reads from workers", daemon=True)
        self._thread.start()

    def post(self, action: Callable[[], object], seconds: float = 0.0) -> None:
        """Call this soon, or after so many seconds. From any thread."""
        self._due.enter(seconds, 0, action)
        with contextlib.suppress(OSError):  # it is full: the thread is about to wake anyway
            self._waker.send(b"\0")

    def watch(self, file: Any, readable: Callable[[], object]) -> None:
        """From now on call this whenever the file can be read. From any thread."""
        self.post(lambda: self._selector.register(file, selectors.EVENT_READ, readable))

    def unwatch(self, file: Any) -> None:
        """Look at the file no longer. In the thread."""
        if file in self._selector.get_map():
            self._selector.unregister(file)

    def close(self, timeout: float) -> None:
        """End the thread once it watches nothing; wait for that, but not longer. From any other thread."""
        self.post(self._closing.set)
        self._thread.join(timeout)

    def _run(self) -> None:
        with self._selector, self._woken, self._waker:
            while True:
                seconds = self._due.run(blocking=False)
                if self._closing.is_set() and len(self._selector.get_map()) == 1:  # what was due may have ended it
                    return
                for key, _ in self._selector.select(seconds):
                    key.data()
