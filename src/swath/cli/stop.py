"""Ctrl-C and SIGTERM: where a run keeps everything the first one asks, the second one ends; elsewhere each one ends."""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from swath.cli.failure import INTERRUPTED, TERMINATED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

HINT = "Ctrl-C stops after this batch and keeps everything"
ANSWER = "stopping after this batch; Ctrl-C again ends at once"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
UNTOUCHED = (signal.SIG_IGN, None)
"""Handlers that stay: a shell has background jobs ignore Ctrl-C, `None` belongs to someone outside Python."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which leaves as little behind as Ctrl-C does."""


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM interrupts as Ctrl-C does, and a second one ends the process at once. Main thread only."""
    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        if before is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, before)


def exit_code_of(end: KeyboardInterrupt) -> int:
    """What a process exits with that this has ended."""
    return TERMINATED if isinstance(end, Terminated) else INTERRUPTED


def _terminate(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise Terminated


class StopRequest:
    """Inside its `with` block, SIGINT and SIGTERM only set `requested`; a second one acts as it would have before.

    Main thread only. `requested` is the signal's number, or 0.

    Args:
        say: shows the user that the request has arrived.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested = 0
        self._say = say
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self._before = {number: before for number, before in handlers.items() if before not in UNTOUCHED}

    def __enter__(self) -> Self:
        for number in self._before:
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
        with suppress(RuntimeError):  # the signal may have come in the middle of a write, which cannot be entered twice
            self._say(ANSWER)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
