"""Waits that begin again after a while, so that Ctrl-C is heard whatever they wait for."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

SIGNALS_S = 1.0
"""How long a wait lasts at most before it begins again: a signal that the system gave to another thread, or just before
the wait began, does not end it, and Python's handlers run only then."""


def renewed(wait: Callable[[float], bool], timeout: float | None = None) -> bool:
    """Wait until it is over, or the time is.

    Args:
        wait: waits for so many seconds at most, and says whether what it waits for is there.
        timeout: in seconds; `None` waits until then.

    Returns:
        What `wait` has said last.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    while not (over := wait(max(0.0, min(SIGNALS_S, until - time.monotonic())))):
        if time.monotonic() >= until:
            break
    return over


def join(thread: threading.Thread, timeout: float) -> bool:
    """Wait until a thread has ended, so many seconds at most; whether it has."""

    def ended(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    return renewed(ended, timeout)
