"""What a contender of `survival.py` tells, and what is read from that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from survival_stage import BATCH, RAISED

BIN_S = 0.5


@dataclass
class Told:
    """What a contender has told so far.

    Attributes:
        batches: when each came, in seconds of the machine's clock, and its frames.
        raised: the type of the error it ended with.
    """

    batches: list[tuple[float, int]] = field(default_factory=list)
    raised: str = ""

    def listen(self, lines: Iterator[str]) -> None:
        """Until the contender ends."""
        for line in lines:
            if line.startswith(RAISED):
                self.raised = line.split()[-1]
            elif line.startswith(BATCH):
                at, frames = line.split()[-2:]
                self.batches.append((float(at), int(frames)))

    def rate(self, begin: float, end: float) -> float:
        """Frames per second that came between two moments."""
        return sum(frames for at, frames in self.batches if begin <= at < end) / (end - begin)

    def longest_wait(self, begin: float, end: float) -> float:
        """Between two batches, or until the end if there was none."""
        moments = [begin, *(at for at, _ in self.batches if begin <= at < end), end]
        return max(later - earlier for earlier, later in pairwise(moments))


@dataclass(frozen=True)
class Seen:
    """What came before and after the kill.

    Attributes:
        told: by the contender.
        promised: frames of each batch.
        begin: of the watch; all moments are of the machine's clock.
        killed: when.
        end: of the watch.
    """

    told: Told
    promised: int
    begin: float
    killed: float
    end: float

    def curve(self) -> list[tuple[float, float]]:
        """Seconds after the kill, and frames per second about then."""
        starts = [self.begin + number * BIN_S for number in range(round((self.end - self.begin) / BIN_S))]
        return [(start + BIN_S / 2 - self.killed, self.told.rate(start, start + BIN_S)) for start in starts]

    def row(self) -> list[float]:
        """Frames/s before the kill and in the last third after it, the smallest batch after it as a share."""
        return [self.told.rate(self.begin, self.killed), self.rate_in_the_end, self._least / self.promised]

    @property
    def longest_wait(self) -> float:
        """Seconds between two batches after the kill."""
        return self.told.longest_wait(self.killed, self.end)

    @property
    def goes_on(self) -> bool:
        """Whether batches come in the end, and all are whole."""
        return self.rate_in_the_end > 0 and self._least == self.promised

    @property
    def rate_in_the_end(self) -> float:
        """Frames per second in the last third after the kill."""
        return self.told.rate(self.end - (self.end - self.killed) / 3, self.end)

    @property
    def _least(self) -> int:
        return min((frames for at, frames in self.told.batches if at >= self.killed), default=0)
