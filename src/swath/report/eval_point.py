"""One evaluation as it is shown, read from a result or from an evaluator's `stats()`."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from swath.report.text import number

if TYPE_CHECKING:
    from collections.abc import Mapping

MEAN = "/reward"
"""How the name of the mean return ends, whatever the prefix of all names is."""


@dataclass(frozen=True)
class EvalPoint:
    """Mean return with its 95 % interval (NaN: none), over so many episodes, of the policy at this step."""

    step: int
    mean: float
    low: float = nan
    high: float = nan
    episodes: int = 0

    @classmethod
    def of(cls, facts: Mapping[str, Any], prefix: str) -> EvalPoint:
        """That of which facts under this prefix tell."""

        def value(name: str, default: float) -> float:
            return float(facts.get(f"{prefix}/{name}", default))

        low, high = value("reward_ci_low", nan), value("reward_ci_high", nan)
        return cls(int(value("step", 0)), value("reward", nan), low, high, int(value("num_episodes", 0)))

    @property
    def value(self) -> str:
        """`475.3 [451, 498]`; without the interval where there is none."""
        interval = f" [{number(self.low)}, {number(self.high)}]"
        return number(self.mean) + ("" if isnan(self.low) else interval)

    @property
    def about(self) -> str:
        """`at step 61,440, 20 episodes`."""
        return f"at step {self.step:,}, {self.episodes:,} episode{'s' * (self.episodes != 1)}"

    def __str__(self) -> str:
        return f"{self.value}, {self.about}"


def point_of(facts: Mapping[str, Any]) -> EvalPoint | None:
    """The evaluation of which these facts tell, whatever their prefix is; `None` if they tell of none."""
    means = [name for name in facts if name.endswith(MEAN)]
    return EvalPoint.of(facts, min(means, key=len).removesuffix(MEAN)) if means else None
