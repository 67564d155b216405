"""Log records that end nothing, whatever the handlers do that are to write them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def tell(log: Callable[..., None], message: str, *args: object, error: BaseException | None = None) -> None:
    """Log a message; what a handler or filter raises is shown as what ends a thread is, and the caller goes on.

    Args:
        log: of a logger: its `error`, say.
        message: with places for the arguments.
        *args: for these.
        error: whose traceback belongs to it.
    """
    try:
        log(message, *args, exc_info=error)
    except BaseException:  # noqa: BLE001  evaluations do not depend on who listens
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
