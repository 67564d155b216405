"""`Progress`: a view of a collector at work, for scripts.

```
 collector ◀──stats("both"), twice a second── a thread ──▶ picture in the terminal, or lines
 evaluator ──on_result──▶ evaluated(result) ────┘
```

Draws do nothing for it. When the terminal fails, the view ends, and the collector goes on.
"""

from __future__ import annotations

import threading
import weakref
from math import nan
from typing import TYPE_CHECKING, Any, Self

from swath.report.status import EvalPoint
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
        every_s: seconds from one picture to the next.

    Raises:
        ValueError: `every_s` is not positive.
    """

    def __init__(self, console: Console | None = None, *, every_s: float = EVERY_S) -> None:
        if not every_s > 0:
            raise ValueError(f"every_s={every_s!r} must be greater than 0")
        self._console, self._every_s = console, every_s
        self._view: View | None = None
        self._point: EvalPoint | None = None
        self._lock = threading.Lock()

    def watch(self, collector: Any) -> Self:
        """Show this collector from now on, or anything else with a collector's `stats`; it is not kept alive.

        Raises:
            RuntimeError: another one is being watched.
        """
        with self._lock:
            self.require_free()
            self._view = View(type(collector).__name__, _weakly(collector), self._every_s)
            self._view.point = self._point
            self._view.begin(self._console)
        weakref.finalize(collector, self._view.close).atexit = False  # the view sees to that, in good time
        return self

    def require_free(self) -> None:
        """Raise `RuntimeError` if it is watching something."""
        if self._view is not None and self._view.open:
            raise RuntimeError("this Progress watches another collector; make one for each, or close() it first")

    def evaluated(self, result: Mapping[str, Any]) -> None:
        """Show this result of an `Evaluator` from now on; may be its `on_result`.

        Raises:
            KeyError: it has no mean return.
        """
        self._point = point_of(result)
        if self._view is not None:
            self._view.point = self._point

    def close(self) -> None:
        """Leave the last picture and give the terminal back; twice is fine."""
        self._point = None
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


def point_of(result: Mapping[str, Any]) -> EvalPoint:
    """An evaluation as it is shown, whatever the prefix of its names.

    Raises:
        KeyError: it has no mean return.
    """
    facts = {str(name).rpartition("/")[2]: name for name in result.keys()}  # noqa: SIM118  may be a TensorDict
    if "reward" not in facts:
        raise KeyError(f"no 'reward' among {sorted(facts)}; give a result of an Evaluator")

    def value(name: str, default: float) -> float:
        return float(result[facts[name]]) if name in facts else default

    low, high = value("reward_ci_low", nan), value("reward_ci_high", nan)
    return EvalPoint(int(value("step", 0)), value("reward", nan), low, high, int(value("num_episodes", 0)))


def _weakly(collector: Any) -> Look:
    held = weakref.ref(collector)

    def look() -> Mapping[str, Any] | None:
        there = held()
        facts: Mapping[str, Any] | None = None if there is None else there.stats("both")
        return facts

    return look
