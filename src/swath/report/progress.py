"""`Progress`: a view of a collector at work, for scripts.

```
 collector ◀──stats("both")──┐
                             ├── twice a second, a thread ──▶ picture in the terminal, or lines
 evaluator ◀──stats()────────┘
```

Draws do nothing for it. When the terminal fails, the view ends, and the collector goes on.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Self

from swath.report.view import View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from swath.report.view import Look

EVERY_S = 0.5


class Progress:
    """Shows a collector while it works: workers with their lives, frames/s, staleness, waiting time, evaluations.

    Hand it to a collector as `progress=`, or let it `watch` one; it shows one at a time, until that is shut down. In a
    terminal it draws a picture, elsewhere it prints a line now and then.

    Args:
        console: rich's console to show it on; `None` for standard output.
        evaluator: an `Evaluator` whose newest result is shown, too; it is not kept alive.
        every_s: seconds from one picture to the next.

    Raises:
        ValueError: `every_s` is not positive.
    """

    def __init__(self, console: Console | None = None, *, evaluator: Any = None, every_s: float = EVERY_S) -> None:
        if not every_s > 0:
            raise ValueError(f"every_s={every_s!r} must be greater than 0")
        self._console, self._every_s = console, every_s
        self._look_at_judge = _nobody if evaluator is None else _weakly(evaluator)
        self._view: View | None = None
        self._lock = threading.Lock()

    def watch(self, collector: Any) -> Self:
        """Show this collector from now on, or anything else with a collector's `stats`; it is not kept alive.

        Raises:
            RuntimeError: another one is being watched.
        """
        with self._lock:
            self.require_free()
            look = _weakly(collector, "both")
            self._view = View(type(collector).__name__, look, self._look_at_judge, self._every_s)
            self._view.begin(self._console)
        weakref.finalize(collector, self._view.close).atexit = False  # the view sees to that, in good time
        return self

    def require_free(self) -> None:
        """Raise `RuntimeError` if it is watching something."""
        if self._view is not None and self._view.open:
            raise RuntimeError("this Progress watches another collector; make one for each, or close() it first")

    def close(self) -> None:
        """Leave the last picture and give the terminal back; twice is fine."""
        if self._view is not None:
            self._view.close()

    def __enter__(self) -> Self:
        """The view itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


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


def _weakly(watched: Any, *views: str) -> Look:
    held = weakref.ref(watched)

    def look() -> Mapping[str, Any] | None:
        there = held()
        facts: Mapping[str, Any] | None = None if there is None else there.stats(*views)
        return facts

    return look


def _nobody() -> None:
    """There is no evaluator."""
