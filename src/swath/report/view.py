"""One collector on one display, looked at by a thread of its own."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from swath.report.eval_point import point_of
from swath.report.seen import Sight

if TYPE_CHECKING:
    from rich.console import Console

    from swath.report.display import Display

_log = logging.getLogger("swath")

GOODBYE_S = 2.0
FAILURES = (Exception, SystemExit)
"""Terminals and pipes fail in many ways; rich's own console asks the process to end where a pipe is closed."""

Look: TypeAlias = Callable[[], Mapping[str, Any] | None]
"""Gives what `stats()` says; `None` when there is nothing to look at any more."""


class View:
    """One collector on one display, and the thread that looks.

    Args:
        title: what is watched.
        look: gives its facts.
        look_at_judge: gives those of its evaluator.
        every_s: seconds from one look to the next.

    Attributes:
        open: whether it is shown.
    """

    def __init__(self, title: str, look: Look, look_at_judge: Look, every_s: float) -> None:
        self._title, self._look, self._look_at_judge, self._every_s = title, look, look_at_judge, every_s
        self.open = True
        self._sight = Sight()
        self._judged = ""
        self._display: Display | None = None
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
        from swath.report.console import RunConsole  # noqa: PLC0415  collectors that nobody watches need no rich
        from swath.report.display import Title, create_display  # noqa: PLC0415  likewise

        self._display = create_display(console or RunConsole(), Title(self._title))
        return self._show()

    def _show(self) -> bool:
        """Whether there is still something to look at."""
        facts = self._look()
        if facts is None:
            return False
        assert self._display is not None
        self._show_evaluation(self._display)
        self._display.show(self._sight.look(facts, time.monotonic()))
        return True

    def _show_evaluation(self, display: Display) -> None:
        """Show it if it is another than before."""
        point = point_of(self._look_at_judge() or {})
        if point is not None and str(point) != self._judged:
            self._judged = str(point)
            display.evaluated(point)

    def _leave(self) -> bool:
        assert self._display is not None
        self._show()
        self._display.close()
        return True

    def _guarded(self, act: Callable[[], bool]) -> bool:
        """Act; when that fails, end the view instead of the collection."""
        try:
            return act()
        except FAILURES as error:
            self._give_up(error)
            return False

    def _give_up(self, error: BaseException) -> None:
        self.open = False
        self._ended.set()
        atexit.unregister(self.close)
        if self._display is not None:
            with suppress(*FAILURES):  # it has failed before; what it has taken of the terminal it gives back first
                self._display.close()
        _log.warning("the view of %s has ended (%r); it collects as before", self._title, error)
