"""Closes what nobody refers to any more, in a thread of its own.

Garbage is collected in whatever thread allocates, also where that thread has locks: Ray's, torch's, those of
`threading`. A finalizer that waits there, or starts a thread, may never return. So it only puts a job into a queue.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

EXIT_S = 10.0

_log = logging.getLogger("swath")


def close_when_collected(owner: object, close: Callable[[], None], *, at_exit: bool) -> None:
    """Have `close` called once `owner` is collected as garbage; any thread may call this.

    It runs in a daemon thread, which all owners of the process share; an exception is logged.

    Args:
        owner: what is watched; `close` must not refer to it.
        close: takes a few seconds at most.
        at_exit: call it also when the interpreter exits and the owner is still there.
    """
    _closer().watch(owner, close, at_exit=at_exit)


class _Closer:
    """The thread of one process, and what it has to close at exit."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._at_exit: list[weakref.finalize[[Callable[[], None]], Any]] = []
        threading.Thread(target=self._run, name="swath closes garbage", daemon=True).start()
        atexit.register(self._exit)

    def watch(self, owner: object, close: Callable[[], None], *, at_exit: bool) -> None:
        finalizer = weakref.finalize(owner, self._jobs.put, close)
        finalizer.atexit = False  # then the thread may be gone
        if at_exit:
            self._at_exit = [*(each for each in self._at_exit if each.alive), finalizer]

    def _run(self) -> None:
        while True:
            close = self._jobs.get()
            try:
                close()
            except Exception:  # noqa: BLE001  nobody is there to catch it
                _log.warning("closing what nobody refers to any more raised", exc_info=True)
            del close

    def _exit(self) -> None:
        """Close what is left; in a fork of the process it is not ours."""
        if os.getpid() != self.process:
            return
        for finalizer in self._at_exit:
            if (left := finalizer.detach()) is not None:
                self._jobs.put(*left[2])
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait(EXIT_S)


_lock = threading.Lock()
_of_this_process: _Closer | None = None


def _closer() -> _Closer:
    global _of_this_process  # noqa: PLW0603  one thread per process
    with _lock:
        if _of_this_process is None or _of_this_process.process != os.getpid():
            _of_this_process = _Closer()
        return _of_this_process
