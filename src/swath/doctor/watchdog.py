"""A limit on how long the user's code may take, kept in the process where that code runs, and which it ends.

    watched ─▶ beat ─▶ beat ─▶ … ─▶ done        each beat allows the same time once more
                 └── none in time: the stacks are written to a file, and the process ends

Python's own watchdog does it. It waits for no lock, so code that never lets Python have a turn is ended, too. The file
is touched whenever it is set, so that another process sees whether there is a watch at all.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TypeVar

T = TypeVar("T")
PARTS = 50
"""To set the watchdog takes as long as many a step: it is done once in this part of the time at most."""


class Watchdog:
    """Ends this process if nothing is heard for a while. Nothing is watched outside of `watched`.

    Args:
        patience: seconds, more than 0.
        file: where the stacks of all threads are written before.
    """

    def __init__(self, patience: float, file: IO[str]) -> None:
        self._patience = patience
        self._file = file
        self._set_at = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch over a block; the `beat` of this process is for it."""
        global _on_duty  # noqa: PLW0603  the watchdog of Python is one per process, too
        _on_duty = self
        self._set(time.monotonic())
        try:
            yield
        finally:
            _on_duty = None
            faulthandler.cancel_dump_traceback_later()

    def hear(self) -> None:
        """Allow the same time once more."""
        now = time.monotonic()
        if now - self._set_at > self._patience / PARTS:
            self._set(now)

    def _set(self, now: float) -> None:
        os.utime(self._file.fileno())
        faulthandler.dump_traceback_later(self._patience, file=self._file, exit=True)
        self._set_at = now


def beat() -> None:
    """Say that the user's code has come back; said before each call of it. Nothing, where nobody watches."""
    if _on_duty is not None:
        _on_duty.hear()


def heard(items: Iterable[T]) -> Iterator[T]:
    """The items, with a beat after each."""
    for item in items:
        beat()
        yield item


_on_duty: Watchdog | None = None
