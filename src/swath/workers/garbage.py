"""Closes what nobody refers to any more, in a thread that waits for that.

Garbage is collected in whatever thread allocates, also where that thread has locks: Ray's, torch's, those of
`threading`. A finalizer that waits there, or starts a thread, may never return. So it only puts an item into a queue.
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
    """Has `close` called once `owner` is collected as garbage, in a daemon thread of its own; errors are logged.

    It is called also when the interpreter exits and the owner is still there.

    Args:
        owner: what is watched; `close` must not refer to it.
        close: takes a few seconds at most.
    """

    def __init__(self, owner: object, close: Callable[[], None]) -> None:
        self._close = close
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._finalizer = weakref.finalize(owner, self._orders.put, close)
        self._finalizer.atexit = False  # only ours waits until all is closed
        self._thread = threading.Thread(target=self._run, name="swath closes garbage", daemon=True)
        self._thread.start()
        self._owner = Owner()
        atexit.register(self._exit)

    def end(self) -> None:
        """Watch no more: the owner has been closed. Twice is fine, so is a call from `close`."""
        self._settle(None)

    def _run(self) -> None:
        close = self._orders.get()
        if close is not None:
            try:
                close()
            except Exception:  # noqa: BLE001  nobody is there to catch it
                _log.warning("closing what nobody refers to any more raised", exc_info=True)
            atexit.unregister(self._exit)

    def _exit(self) -> None:
        if self._owner.is_here:
            self._settle(self._close)

    def _settle(self, close: Callable[[], None] | None) -> None:
        atexit.unregister(self._exit)
        if self._finalizer.detach() is not None:
            self._orders.put(close)
        if threading.current_thread() is not self._thread:
            self._thread.join(EXIT_S)
