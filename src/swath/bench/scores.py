"""What was measured of each setting, and which is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from swath.bench.setting import Setting


@dataclass(frozen=True)
class Score:
    """What was measured of one setting.

    Attributes:
        setting: which.
        rates: frames per second, one per round.
        failure: why there are none, if so.
    """

    setting: Setting
    rates: tuple[float, ...] = ()
    failure: str = ""

    @property
    def median(self) -> float:
        """Frames per second; 0 for a setting that failed."""
        return median(self.rates) if self.rates else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, one row of a table."""
        numbers = {"median": self.median, "lowest": min(self.rates, default=0), "highest": max(self.rates, default=0)}
        rates = {f"{name}_frames_per_second": round(value, 1) for name, value in numbers.items()}
        return {**vars(self.setting), **rates, "rounds": len(self.rates), "failure": self.failure}


def best(scores: Sequence[Score]) -> Score | None:
    """The one with the highest median; `None` if all have failed."""
    measured = [score for score in scores if score.rates]
    return max(measured, key=lambda score: score.median, default=None)


def ratios(score: Score, winner: Score) -> list[float]:
    """How fast one is in times of another, round by round: both had their turns under much the same conditions."""
    return [rate / won for rate, won in zip(score.rates, winner.rates, strict=True)] if score.rates else []


def as_fast(scores: Sequence[Score], winner: Score) -> list[Score]:
    """Others that were as fast as the winner in some round: the figures do not tell them apart."""
    return [score for score in scores if score is not winner and max(ratios(score, winner), default=0) >= 1]
