"""A sink that can neither hold up nor end the run that feeds it.

```
 log ──row──▶ queue ──▶ a thread ──log──▶ the sink
  ▲                        └─ raises, hangs, falls behind: reported once, and it gets no more rows
  └── returns at once
```
"""

from __future__ import annotations

import threading
from queue import Full, Queue
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from swath.report.sink import Sink

    Row: TypeAlias = tuple[int, Mapping[str, float]]

MOST_WAITING = 10_000
"""Rows that may wait for a sink that is slow."""

GOODBYE_S = 60.0


class DetachedSink:
    """Feeds another sink from a thread of its own. What goes wrong there ends that sink alone.

    For sinks that are not the run's own record: services elsewhere fail, and their clients try again for minutes.

    Args:
        sink: which belongs to the thread from now on.
        told: called once with what went wrong, in any thread.
        goodbye_s: how many seconds `close` waits for rows that are on their way.
    """

    def __init__(self, sink: Sink, told: Callable[[Exception], None], *, goodbye_s: float = GOODBYE_S) -> None:
        self._sink, self._told, self._goodbye_s = sink, told, goodbye_s
        self._rows: Queue[Row | None] = Queue(MOST_WAITING)
        self._over = False
        self._thread = threading.Thread(target=self._feed, name="swath-sink", daemon=True)
        self._thread.start()

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Hand the row to the thread; without effect once something has gone wrong."""
        if not self._over:
            self._put((frames, dict(metrics)))

    def close(self) -> None:
        """Wait until all rows are there and the sink is closed, for a while; twice is fine."""
        if self._over:
            return
        self._put(None)
        self._thread.join(self._goodbye_s)
        if self._thread.is_alive():
            self._end(TimeoutError(f"it is not done after {self._goodbye_s:g} s; what it still has may be lost"))
        self._over = True

    def _put(self, row: Row | None) -> None:
        try:
            self._rows.put_nowait(row)
        except Full:
            self._end(TimeoutError(f"it does not keep up: {self._rows.maxsize:,} rows wait for it"))

    def _end(self, why: Exception) -> None:
        if not self._over:
            self._over = True
            self._told(why)

    def _feed(self) -> None:
        for act in (self._drain, self._sink.close):
            try:
                act()
            except Exception as error:  # noqa: BLE001  clients of services fail in many ways
                self._end(error)

    def _drain(self) -> None:
        while not self._over and (row := self._rows.get()) is not None:
            self._sink.log(*row)
