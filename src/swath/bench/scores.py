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
        rates: frames per second, one per round; of the first rounds, if there was no time for all.
        failure: why there are none, if so.
    """

    setting: Setting
    rates: tuple[float, ...] = ()
    failure: str = ""

    @property
    def median(self) -> float:
        """Frames per second; 0 for a setting that failed, or had no turn."""
        return median(self.rates) if self.rates else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, one row of a table."""
        numbers = {"median": self.median, "lowest": min(self.rates, default=0), "highest": max(self.rates, default=0)}
        rates = {f"{name}_frames_per_second": round(value, 1) for name, value in numbers.items()}
        return {**vars(self.setting), **rates, "rounds": len(self.rates), "failure": self.failure}


def whole_rounds(scores: Sequence[Score]) -> int:
    """Rounds in which each setting that has not failed had its turn."""
    return min((len(score.rates) for score in scores if not score.failure), default=0)


def shares(scores: Sequence[Score]) -> list[float]:
    """How fast each setting is in parts of the fastest of its round, the median over the whole rounds.

    It is 0 for a setting that failed, and for all before the end of the first round. The settings of a round had their
    turns under much the same conditions, those of different rounds perhaps not.
    """
    whole = whole_rounds(scores)
    rounds = zip(*(score.rates[:whole] for score in scores if not score.failure), strict=True)
    fastest = [max(rates) for rates in rounds]
    return [median(_parts(score, fastest)) if fastest and score.rates else 0.0 for score in scores]


def best(scores: Sequence[Score]) -> Score | None:
    """The one with the largest share; `None` if all have failed, or the first round has not ended."""
    ranked = sorted(zip(shares(scores), scores, strict=True), key=lambda pair: (pair[0], pair[1].median))
    return ranked[-1][1] if ranked and ranked[-1][0] else None


def as_fast(scores: Sequence[Score], winner: Score) -> list[Score]:
    """Others that were as fast as the winner in some round: the figures do not tell them apart."""
    return [one for one in scores if one is not winner and max(_parts(one, winner.rates), default=0.0) >= 1]


def _parts(score: Score, rates: Sequence[float]) -> list[float]:
    return [mine / other for mine, other in zip(score.rates, rates, strict=False)]
