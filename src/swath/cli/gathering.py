"""The loop of a collection: draw, write, show.

```
 collector ──batch──▶ rows [n], valid ones only, no more than are asked for ──▶ dataset, with the collector's state
```
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from swath.cli.collector_state import as_plain, without_weights
from swath.keys import MASK

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from swath.cli.stop import StopRequest
    from swath.collectors import Collector
    from swath.report.datasets import DatasetWriter
    from swath.report.display import Display


class Gathering:
    """One session of a collection, until its last frame.

    Args:
        collector: without an end of its own.
        writer: where the rows go.
        goal: how many frames there are to be.

    Attributes:
        surplus: frames that were collected and not written, because there were enough.
    """

    def __init__(self, collector: Collector, writer: DatasetWriter, goal: int) -> None:
        self._collector, self._writer, self._goal = collector, writer, goal
        self._began_with, self._began_at = self.written, time.monotonic()
        self.surplus = 0

    @property
    def written(self) -> int:
        """Frames of the dataset."""
        return self._writer.manifest.frames

    @property
    def new(self) -> int:
        """Frames of this session."""
        return self.written - self._began_with

    @property
    def seconds(self) -> float:
        """How long this session has been going on."""
        return time.monotonic() - self._began_at

    def run(self, display: Display, stop: StopRequest) -> None:
        """Collect until the goal, or until the batch after which a stop was asked for."""
        display.show(self._look())
        for batch in self._collector:
            rows = rows_of(batch)
            kept = rows[: self._goal - self.written]
            self.surplus += len(rows) - len(kept)
            self._writer.append(kept, as_plain(without_weights(self._collector.state_dict())))
            display.show(self._look())
            if self.written >= self._goal or stop.requested:
                break

    def _look(self) -> dict[str, Any]:
        """The collector at work, and the dataset as its goal."""
        return {**self._collector.stats("both"), "frames": self.written, "total_frames": self._goal}


def rows_of(batch: TensorDictBase) -> TensorDictBase:
    """The valid rows of a batch `[*B, T]`, `[n]`: env by env, each in the order of time."""
    rows, mask = batch.reshape(-1), batch.get(MASK, None)
    return rows if mask is None else rows[mask.reshape(-1)]
