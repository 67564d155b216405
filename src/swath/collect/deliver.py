"""The last stretch of a batch: post-processing, counting, and hand-out or a write to the replay buffer.

batch ─▶ finished ─▶ still open? ─▶ (extend) ─▶ counted ─▶ Drawn
   └───────────── whatever raises on the way: counted as discarded
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from swath.collect.counters import Counters, Episodes
from swath.collect.notes import noted
from swath.collect.shaping import Part, Shaper, moved_for


@dataclass(frozen=True)
class Drawn:
    """What a draw gave.

    Attributes:
        batch: the batch; `None` at the end, and where it was written to a buffer.
        ended: the run is over.
    """

    batch: Any
    ended: bool = False


@dataclass(frozen=True)
class Delivery:
    """Delivers batches of one collection.

    Attributes:
        shaper: post-processes them.
        counters: count them.
        require_open: raises if the collection was shut down meanwhile.
        buffer: where they are written, if anywhere.
    """

    shaper: Shaper
    counters: Counters
    require_open: Callable[[], None]
    buffer: Any = None

    def deliver(self, batch: Part) -> Drawn:
        """Hand out one batch, or write it."""
        return self.deliver_all([batch])

    def deliver_all(self, parts: Sequence[Part]) -> Drawn:
        """Hand out one batch, or write its parts one after another; together they are one batch.

        Raises:
            Closed: shut down meanwhile.
            Exception: what a function of the user's or the buffer raised; what was not written is discarded.
        """
        frames = [part.frames for part in parts]
        written = 0
        try:
            for part in parts:
                finished = self.shaper.finish(part.batch)
                self.require_open()
                if self.buffer is not None:
                    with noted("extend() of the replay buffer"):
                        self.buffer.extend(moved_for(self.buffer, finished))
                written += 1
        except BaseException:
            self.counters.discard(sum(frames[written:]))
            self.counters.add(sum(frames[:written]), _episodes(parts[:written]))
            raise
        self.counters.deliver(sum(frames), _episodes(parts))
        return Drawn(None if self.buffer is not None else finished)


def _episodes(parts: Sequence[Part]) -> Episodes:
    return tuple(chain.from_iterable(part.episodes for part in parts))
