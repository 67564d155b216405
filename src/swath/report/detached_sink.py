"""A sink that can neither hold up nor end the run that feeds it.

```
 log ──row──▶ queue ──▶ a thread ──log──▶ the sink
  ▲                        └─ raises, hangs, falls behind: told once, and it gets no more rows
  └── returns at once
```
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from swath.report.sink import Sink

    Row: TypeAlias = tuple[int, Mapping[str, float]]

MOST_WAITING = 10_000
"""Rows that may wait for a sink that is slow."""

GOODBYE_S = 60.0


class DetachedSink:
    """Feeds another sink from a thread of its own; what goes wrong there is told once, and ends that sink alone.

    For sinks that are not the run's own record: services elsewhere fail, and their clients try again for minutes.

    Args:
        sink: which belongs to the thread from now on.
        told: called with what went wrong, in the thread that calls `log` or `close`.
        goodbye_s: how many seconds `close` waits for rows that are on their way.
    """

    def __init__(self, sink: Sink, told: Callable[[Exception], None], *, goodbye_s: float = GOODBYE_S) -> None:
        self._sink, self._told, self._goodbye_s = sink, told, goodbye_s
        self._rows: SimpleQueue[Row | None] = SimpleQueue()
        self._error: Exception | None = None
        self._over = False
        self._thread = threading.Thread(target=self._feed, name="swath-sink", daemon=True)
        self._thread.start()

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Hand the row to the thread; without effect once something has gone wrong."""
        if self._over:
            return
        if self._error is not None:
            self._end(self._error)
        elif self._rows.qsize() >= MOST_WAITING:
            self._end(TimeoutError(f"it does not keep up: {MOST_WAITING:,} rows wait for it"))
        else:
            self._rows.put((frames, dict(metrics)))

    def close(self) -> None:
        """Wait until all rows are there and the sink is closed, for a while; twice is fine."""
        if self._over:
            return
        self._end(None)
        self._thread.join(self._goodbye_s)
        if self._thread.is_alive():
            self._told(TimeoutError(f"it is not done after {self._goodbye_s:g} s; what it still has may be lost"))
        elif self._error is not None:
            self._told(self._error)

    def _end(self, why: Exception | None) -> None:
        self._over = True
        self._rows.put(None)
        if why is not None:
            self._told(why)

    def _feed(self) -> None:
        self._guarded(self._drain)
        self._guarded(self._sink.close)

    def _drain(self) -> None:
        for frames, metrics in iter(self._rows.get, None):
            self._sink.log(frames, metrics)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  clients of services fail in many ways; the first is told
            self._error = self._error or error
