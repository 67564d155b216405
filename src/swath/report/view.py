"""One collector on one screen, looked at by a thread of its own."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from swath.report.seen import Seen, Sight

if TYPE_CHECKING:
    from rich.console import Console

    from swath.report.screens import Screen
    from swath.report.status import EvalPoint

_log = logging.getLogger("swath")

GOODBYE_S = 2.0

Look: TypeAlias = Callable[[], Mapping[str, Any] | None]
"""Gives `stats("both")`; `None` when there is nothing to look at any more."""


class View:
    """One collector on one screen, and the thread that looks.

    Args:
        title: what is watched.
        look: gives its facts.
        every_s: seconds from one look to the next.

    Attributes:
        point: the newest evaluation.
        open: whether it is shown.
    """

    def __init__(self, title: str, look: Look, every_s: float) -> None:
        self._title, self._look, self._every_s = title, look, every_s
        self.point: EvalPoint | None = None
        self.open = True
        self._sight, self._seen = Sight(), Seen()
        self._screen: Screen | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="swath-progress", daemon=True)

    def begin(self, console: Console | None) -> None:
        """Open the screen and start looking, until the interpreter exits at the latest."""
        self._guarded(lambda: self._opened(console))
        if self.open:
            atexit.register(self.close)  # those who registered later are called earlier
            self._thread.start()

    def close(self) -> None:
        """Show what is seen now, and end; a terminal that hangs is left alone."""
        self._ended.set()
        if not self._claim():
            return
        atexit.unregister(self.close)
        if threading.current_thread() is not self._thread:
            self._thread.join(GOODBYE_S)
            if self._thread.is_alive():
                return
        self._guarded(self._leave)

    def _claim(self) -> bool:
        """Whether it is still open; not any more."""
        with self._lock:
            was, self.open = self.open, False
            return was

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            if not self._guarded(self._show):
                self.close()

    def _opened(self, console: Console | None) -> bool:
        from rich.console import Console as OnStdout  # noqa: PLC0415  collectors that nobody watches need no rich

        from swath.report.screens import create_screen  # noqa: PLC0415  likewise

        self._screen = create_screen(console or OnStdout(), self._title)
        return self._show()

    def _show(self) -> bool:
        """Whether there is still something to look at."""
        if not self._see():
            return False
        assert self._screen is not None
        self._screen.show(self._seen, self.point)
        return True

    def _see(self) -> bool:
        facts = self._look()
        if facts is not None:
            self._seen = self._sight.look(facts, time.monotonic())
        return facts is not None

    def _leave(self) -> bool:
        self._see()
        if self._screen is not None:
            self._screen.close(self._seen, self.point)
        return True

    def _guarded(self, act: Callable[[], bool]) -> bool:
        """Act; when that fails, end the view instead of the collection."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001  terminals and pipes fail in many ways; it is logged
            self._give_up(error)
            return False

    def _give_up(self, error: Exception) -> None:
        self.open = False
        self._ended.set()
        atexit.unregister(self.close)
        screen, self._screen = self._screen, None
        if screen is not None:
            with suppress(Exception):  # it has failed before; what it has taken of the terminal it gives back first
                screen.close(self._seen, self.point)
        _log.warning("the view of %s has ended (%r); it collects as before", self._title, error)
