"""`Progress`: a view of a collector at work, for scripts.

```
 collector ◀──stats("both")──┐
                             ├── twice a second, a thread ──▶ picture in the terminal, or lines
 evaluator ◀──stats()────────┘
```

When the terminal fails, the view ends, and the collector goes on.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from swath.report.display import Display

EVERY_S, GOODBYE_S = 0.5, 2.0
FAILURES = (Exception, SystemExit)
"""What a terminal or pipe that fails may raise. Rich asks the process to end when nobody reads a pipe any more."""

_log = logging.getLogger("swath")


class Progress(AbstractContextManager["Progress"]):
    """Shows a collector while it works: workers with their lives, frames/s, staleness, waiting time, evaluations.

    Hand it to a collector as `progress=`, or let it `watch` one. It shows one at a time, until that is shut down. In a
    terminal it draws a picture, elsewhere it prints a line now and then.

    Args:
        console: rich's console to show it on; `None` for standard output.
        evaluator: an `Evaluator` whose newest result is shown, too. It is not kept alive.
        every_s: seconds from one picture to the next.

    Raises:
        ValueError: `every_s` is not positive.
    """

    def __init__(self, console: Console | None = None, *, evaluator: Any = None, every_s: float = EVERY_S) -> None:
        if not every_s > 0:
            raise ValueError(f"every_s={every_s!r} must be greater than 0")
        self._console, self._every_s = console, every_s
        self._evaluator: Callable[[], Any] = (lambda: None) if evaluator is None else weakref.ref(evaluator)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, collector: Any) -> Self:
        """Show this collector from now on, or anything else with a collector's `stats`. It is not kept alive.

        Raises:
            RuntimeError: another one is being watched.
        """
        self.require_free()
        self._ended = threading.Event()
        arguments = (type(collector).__name__, weakref.ref(collector), self._ended)
        self._thread = threading.Thread(target=self._run, args=arguments, name="swath-progress", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        return self

    def require_free(self) -> None:
        """Raise `RuntimeError` if it is watching something."""
        if self._thread is not None and self._thread.is_alive() and not self._ended.is_set():
            raise RuntimeError("this Progress watches another collector; make one for each, or close() it first")

    def close(self) -> None:
        """Leave the last picture and give the terminal back; a terminal that hangs is left alone. Twice is fine."""
        self._ended.set()
        atexit.unregister(self.close)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(GOODBYE_S)

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _run(self, name: str, collector: Callable[[], Any], ended: threading.Event) -> None:
        """Draw until the end, in the view's own thread, and once more then."""
        from rich.console import Console  # noqa: PLC0415  collectors that nobody watches need no rich

        from swath.report.display import Display  # noqa: PLC0415  likewise

        display: Display | None = None
        try:
            display = Display(self._console or Console(), name)
            while self._show(display, collector()) and not ended.wait(self._every_s):
                pass
            self._show(display, collector())
        except FAILURES as error:
            _log.warning("the view of %s has ended (%r); it collects as before", name, error)
        finally:
            if display is not None:
                with suppress(*FAILURES):
                    display.close()

    def _show(self, display: Display, collector: Any) -> bool:
        """Whether there is still something to look at."""
        if collector is None:
            return False
        if (evaluator := self._evaluator()) is not None:
            display.evaluated(evaluator.stats())
        display.show(collector.stats("both"))
        return True


def as_progress(given: Any) -> Progress | None:
    """What the argument `progress` of a collector means.

    Raises:
        TypeError: it is neither a bool, nor `None`, nor a `Progress`.
        RuntimeError: it watches another collector.
    """
    if given is None or isinstance(given, bool):
        return Progress() if given else None
    if not isinstance(given, Progress):
        raise TypeError(f"progress={given!r} must be True, False or a swath.Progress")
    given.require_free()
    return given
