"""Ctrl-C and SIGTERM while a run keeps everything: the first one asks, the second one ends."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

HINT = "Ctrl-C stops after this batch and keeps everything"
ANSWER = "stopping after this batch; Ctrl-C again ends at once"
UNTOUCHED = (signal.SIG_IGN, None)
"""Handlers that stay: a shell has background jobs ignore Ctrl-C, `None` belongs to someone outside Python."""


class StopRequest(AbstractContextManager["StopRequest"]):
    """Inside its `with` block, SIGINT and SIGTERM only set `requested`; a second one acts as it would have before.

    Main thread only. `requested` is the signal's number, or 0.

    Args:
        say: shows the user that the request has arrived.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested, self._say = 0, say
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._before = {number: before for number, before in handlers.items() if before not in UNTOUCHED}
        for number in self._before:
            signal.signal(number, self._ask)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """What a process ended by this signal exits with: 130 after Ctrl-C; 0 without a request."""
        return 128 + self.requested if self.requested else 0

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.requested = number
        self.__exit__()
        with suppress(RuntimeError):  # the signal may have come in the middle of a write, which cannot be entered twice
            self._say(ANSWER)
