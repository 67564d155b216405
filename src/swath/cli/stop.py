"""Ctrl-C: the first one asks, the second one ends."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Inside its `with` block, SIGINT and SIGTERM only set `requested`; a second one acts as it would have before.

    Main thread only. `requested` is the signal's number, or 0.
    """

    def __init__(self) -> None:
        self.requested = 0
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    @property
    def exit_code(self) -> int:
        """What a process ended by this signal exits with: 130 after Ctrl-C; 0 without a request."""
        return 128 + self.requested if self.requested else 0

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.requested = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
