"""Closes services that are collected as garbage, in one thread per process.

Python may collect garbage in any thread that allocates, also while that thread holds locks of Ray, torch or
`threading`. A finalizer that waits, or starts a thread, may never return. So it only puts an item into a queue.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from swath.owner import Owner

EXIT_S = 10.0

_log = logging.getLogger("swath")


class GarbageWatch:
    """Closes a service when its owner is collected as garbage, or when the interpreter exits; logs errors.

    Args:
        owner: the watched object; `close` must not refer to it.
        close: takes a few seconds at most.
    """

    def __init__(self, owner: object, close: Callable[[], None]) -> None:
        self._close, self._process, self._closed = close, Owner(), threading.Event()
        self._thread = _shared_thread()
        self._finalizer = weakref.finalize(owner, self._thread.calls.put, self._run)
        self._finalizer.atexit = False  # `_exit` also waits until it is closed
        atexit.register(self._exit)

    def end(self) -> None:
        """Stop watching, because the owner has been closed. Twice is fine, so is a call from `close`."""
        if self._finalizer.detach() is not None:
            self._finish()
        self._wait()

    def _run(self) -> None:
        try:
            self._close()
        except Exception:  # noqa: BLE001  no caller could catch it
            _log.warning("closing a service that was collected as garbage raised", exc_info=True)
        finally:
            self._finish()

    def _exit(self) -> None:
        if self._process.is_here:
            if self._finalizer.detach() is not None:
                self._thread.calls.put(self._run)
            self._wait()

    def _finish(self) -> None:
        atexit.unregister(self._exit)
        self._closed.set()
        with _lock:
            self._thread.watches -= 1
            if self._thread.watches == 0:
                self._thread.calls.put(None)

    def _wait(self) -> None:
        if self._process.is_here and threading.current_thread() is not self._thread:
            self._closed.wait(EXIT_S)
            if self._thread.watches == 0:
                self._thread.join(EXIT_S)


class _CloserThread(threading.Thread):
    """Runs the calls in its queue; ends when no watch uses it."""

    def __init__(self) -> None:
        super().__init__(name="swath closes garbage", daemon=True)
        self.calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.watches, self.process = 0, Owner()

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            call()


def _shared_thread() -> _CloserThread:
    """Return the thread of this process; start it if there is none."""
    global _thread  # noqa: PLW0603  one per process
    with _lock:
        if _thread is None or not _thread.watches or not _thread.process.is_here:
            _thread = _CloserThread()
            _thread.start()
        _thread.watches += 1
        return _thread


_lock = threading.RLock()  # starting a thread may collect garbage whose `__del__` ends a watch
_thread: _CloserThread | None = None
