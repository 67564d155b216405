"""When an evaluation has played enough rounds: a pure decision on the interval so far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from swath.options import count

Stopped: TypeAlias = Literal["fixed", "ci", "max"]

_ROUNDS_AT_MOST = 10


@dataclass(frozen=True)
class StopRule:
    """How many episodes an evaluation plays: one round, or rounds until the interval is narrow enough.

    Stopping where the interval happens to be narrow favours intervals that are too narrow: those hold the true mean
    somewhat less often than they say.

    Attributes:
        num_trajectories: episodes of a round, ≥ 1.
        until_ci_halfwidth: half the width of the interval of the mean return that ends the evaluation, > 0;
            None plays exactly one round.
        max_trajectories: most episodes over all rounds; None means 10 rounds.

    Raises:
        ValueError: a number out of range, or a bound without `until_ci_halfwidth`.
    """

    num_trajectories: int = 10
    until_ci_halfwidth: float | None = None
    max_trajectories: int | None = None

    def __post_init__(self) -> None:
        count("num_trajectories", self.num_trajectories)
        if self.until_ci_halfwidth is None:
            self._check_fixed()
        else:
            self._check_sequential(self.until_ci_halfwidth)

    def _check_fixed(self) -> None:
        if self.max_trajectories is not None:
            raise ValueError(f"max_trajectories={self.max_trajectories} needs until_ci_halfwidth, which is None")

    def _check_sequential(self, halfwidth: float) -> None:
        if not (isinstance(halfwidth, int | float) and 0 < halfwidth < math.inf):
            raise ValueError(f"until_ci_halfwidth={halfwidth!r} must be a finite number > 0")
        if self.num_trajectories < 2:
            raise ValueError(f"until_ci_halfwidth={halfwidth} needs num_trajectories of 2 or more, got 1")
        if self.max_trajectories is not None:
            count("max_trajectories", self.max_trajectories, least=self.num_trajectories)

    @property
    def most(self) -> int:
        """Most episodes an evaluation may play under this rule."""
        if self.until_ci_halfwidth is None:
            return self.num_trajectories
        return self.max_trajectories or _ROUNDS_AT_MOST * self.num_trajectories

    def verdict(self, played: int, interval: tuple[float, float]) -> Stopped | None:
        """Why to stop after `played` episodes with this interval of the mean return; None: play another round.

        An interval of NaN is never narrow enough.
        """
        if self.until_ci_halfwidth is None:
            return "fixed"
        if halfwidth(interval) <= self.until_ci_halfwidth:
            return "ci"
        return "max" if played + self.num_trajectories > self.most else None


def halfwidth(interval: tuple[float, float]) -> float:
    """Half the width of (low, high)."""
    low, high = interval
    return (high - low) / 2.0
