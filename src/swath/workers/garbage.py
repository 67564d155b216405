"""Closes what nobody refers to any more, in a thread that waits for that.

Garbage is collected in whatever thread allocates, also where that thread has locks: Ray's, torch's, those of
`threading`. A finalizer that waits there, or starts a thread, may never return. So it only puts an item into a queue,
and one thread of this process closes what comes.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

EXIT_S = 10.0

_log = logging.getLogger("swath")


class _Closer:
    """The queue and its thread, a daemon."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="swath closes garbage", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self.orders.get()()
            except Exception:  # noqa: BLE001  nobody is there to catch it
                _log.warning("closing what nobody refers to any more raised", exc_info=True)


_closers: list[_Closer] = []


def _closer() -> _Closer:
    """That of this process; a fork has none of its parent's threads. Two threads may make two, which does no harm."""
    if not _closers or _closers[-1].process != os.getpid():
        _closers.append(_Closer())
    return _closers[-1]


class GarbageWatch:
    """Has `close` called once `owner` is collected as garbage, in a thread that is there for that; errors are logged.

    Args:
        owner: what is watched; `close` must not refer to it.
        close: takes a few seconds at most.
        at_exit: call it also when the interpreter exits and the owner is still there.
    """

    def __init__(self, owner: object, close: Callable[[], None], *, at_exit: bool) -> None:
        self._closer, self._close = _closer(), close
        self._finalizer = weakref.finalize(owner, self._closer.orders.put, close)
        self._finalizer.atexit = False  # only ours waits until all is closed
        if at_exit:
            atexit.register(self._exit)

    def end(self) -> None:
        """Watch no more: the owner has been closed. Twice is fine, so is a call from `close`."""
        self._finalizer.detach()
        atexit.unregister(self._exit)

    def _exit(self) -> None:
        if self._closer.process == os.getpid() and self._finalizer.detach() is not None:  # else this is a fork
            closed = threading.Event()
            self._closer.orders.put(self._close)
            self._closer.orders.put(closed.set)
            closed.wait(EXIT_S)
