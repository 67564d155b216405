"""How often the 95 % interval of an evaluation holds the true mean, and how often other intervals would.

    python benchmarks/interval_coverage.py [--runs 1000]

Each run draws N returns from a source whose mean is known and asks every contender for its interval: the plain
percentiles of the bootstrap, BCa as in the book, Student's t, the studentised bootstrap, and ours. A sample of equal
returns tells none of them that there are others, hence the column for those. Ends with 1 if ours misses a target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from figures import ended, table, verdict
from swath.evaluation.request import Conditions
from swath.evaluation.statistics import RESAMPLES, Bootstrap, mean_interval, student

Floats = NDArray[np.float64]
Source = Callable[[np.random.Generator, tuple[int, ...]], Floats]

EPISODES = (5, 10, 20, 50)
CONTENDERS = ("ours", "percentiles", "BCa", "Student's t", "studentised")
TAIL = 0.025
NORMAL = NormalDist()
RULE = Conditions(num_trajectories=10, until_ci_halfwidth=0.4)


def mix(share: float) -> tuple[Source, float]:
    """Returns of 3, and of 41 for a share of the episodes."""
    return lambda draws, size: np.where(draws.random(size) < share, 41.0, 3.0), 3.0 + 38.0 * share


SOURCES: dict[str, tuple[Source, float]] = {
    "normal": (lambda draws, size: draws.normal(size=size), 0.0),
    "exponential": (lambda draws, size: draws.exponential(size=size), 1.0),
    "3 or 41, 50/50": mix(0.5),
    "3 or 41, 80/20": mix(0.2),
    "3 or 41, 90/10": mix(0.1),
}
TARGETS = {
    ("normal", 20): (0.93, 0.97),
    ("normal", 50): (0.92, 0.97),
    **{(name, 20): (0.90, 1.0) for name in ("exponential", "3 or 41, 50/50", "3 or 41, 80/20")},
    ("3 or 41, 90/10", 50): (0.90, 1.0),
}


def resampled(values: Floats, draws: np.random.Generator) -> tuple[Floats, Floats]:
    """Mean and standard deviation [runs, resamples] of resamples of the values [runs, N]."""
    n = values.shape[1]
    drawn = (row[draws.integers(0, n, size=(RESAMPLES, n))] for row in values)
    means, spreads = zip(*((each.mean(axis=1), each.std(axis=1, ddof=1)) for each in drawn), strict=True)
    return np.array(means), np.array(spreads)


def quantile(ordered: Floats, level: Floats | float) -> Floats:
    """Of each row [resamples], the value nearest to its level."""
    places = np.rint(np.broadcast_to(level, len(ordered)) * (RESAMPLES - 1)).astype(int)
    return ordered[np.arange(len(ordered)), places]


def bca(values: Floats, means: Floats, ordered: Floats) -> tuple[Floats, Floats]:
    """With the bias counted from the resamples, ties half, and the acceleration of the jackknife."""
    centre = values.mean(axis=1, keepdims=True)
    below = ((means < centre).mean(axis=1) + (means <= centre).mean(axis=1)) / 2
    deviations = values - centre
    acceleration = (deviations**3).sum(axis=1) / np.maximum((deviations**2).sum(axis=1), 1e-12) ** 1.5 / 6

    def level(sign: int, share: float, a: float) -> float:
        bias = NORMAL.inv_cdf(min(max(share, 1e-3), 1 - 1e-3))
        there = bias + sign * NORMAL.inv_cdf(1 - TAIL)
        return NORMAL.cdf(bias + there / (1 - a * there))

    low, high = (np.array([level(sign, *each) for each in zip(below, acceleration, strict=True)]) for sign in (-1, 1))
    return quantile(ordered, low), quantile(ordered, high)


def studentised(values: Floats, means: Floats, spreads: Floats) -> tuple[Floats, Floats]:
    """Of resamples in which all values are equal, the studentised mean is infinite."""
    centre, spread = values.mean(axis=1), values.std(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ordered = np.sort(np.nan_to_num((means - centre[:, None]) / spreads, nan=0.0, posinf=np.inf, neginf=-np.inf))
        low, high = centre - quantile(ordered, 1 - TAIL) * spread, centre - quantile(ordered, TAIL) * spread
    return np.where(spread == 0, centre, low), np.where(spread == 0, centre, high)


def contenders(values: Floats, draws: np.random.Generator) -> dict[str, tuple[Floats, Floats]]:
    """Lower and upper ends [runs] of each contender's intervals."""
    means, spreads = resampled(values, draws)
    ordered, n = np.sort(means), values.shape[1]
    centre, reach = values.mean(axis=1), student(0.95, n - 1) * values.std(axis=1, ddof=1) / np.sqrt(n)
    low, high = np.array([mean_interval(row, root) for root, row in enumerate(values)]).T
    ends = (
        (low, high),
        (quantile(ordered, TAIL), quantile(ordered, 1 - TAIL)),
        bca(values, means, ordered),
        (centre - reach, centre + reach),
        studentised(values, means, spreads),
    )
    return dict(zip(CONTENDERS, ends, strict=True))


def covered(low: Floats, high: Floats, mean: float) -> float:
    """Share of the intervals that hold the mean."""
    return float(np.mean((low <= mean) & (mean <= high)))


def row(name: str, n: int, runs: int) -> list[float]:
    """Shares of the intervals that hold the mean, by contender; then of those without an end, and without width."""
    source, mean = SOURCES[name]
    draws = np.random.default_rng([n, list(SOURCES).index(name)])
    values = source(draws, (runs, n))
    intervals = contenders(values, draws)
    shares = {contender: covered(*ends, mean) for contender, ends in intervals.items()}
    unbounded = np.mean(np.isinf(intervals["studentised"]).any(axis=0))
    return [*shares.values(), float(unbounded), float(np.mean(np.ptp(values, axis=1) == 0))]


def in_rounds(source: Source, draws: np.random.Generator) -> tuple[float, float]:
    """The interval of an evaluation that stops when it is narrow enough."""
    values = source(draws, (0,))
    while True:
        values = np.concatenate([values, source(draws, (RULE.num_trajectories,))])
        interval = mean_interval(values)
        if RULE.verdict(len(values), interval):
            return interval


def of_two(source: Source, draws: np.random.Generator) -> tuple[float, float]:
    """The interval of the difference of 10 returns and 20, unpaired."""
    return Bootstrap().interval((-1.0, source(draws, (10,))), (1.0, source(draws, (20,))))


def beside(name: str, runs: int) -> list[float]:
    """What ours does where rounds are played, and where two evaluations are compared."""
    source, mean = SOURCES[name]
    draws = np.random.default_rng(0)
    rounds, apart = (np.array([each(source, draws) for _ in range(runs)]).T for each in (in_rounds, of_two))
    return [covered(*rounds, mean), covered(*apart, 0.0)]


def main() -> int:
    """Print the tables; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="simulated evaluations per line")
    runs = parser.parse_args().runs
    rows = {(name, n): row(name, n, runs) for name in SOURCES for n in EPISODES}
    shares = dict.fromkeys(CONTENDERS, ".1%") | {"no end": ".0%", "no width": ".0%"}
    table("How often 95 % intervals hold the mean", shares, {_line(*of): values for of, values in rows.items()})
    passed = [_passes(of, rows[of][0]) for of in TARGETS]
    others = {name: beside(name, runs) for name in ("normal", "exponential")}
    table("Ours, where rounds are played, and where two are compared", {"rounds": ".1%", "10 and 20": ".1%"}, others)
    return ended(passed)


def _line(name: str, n: int) -> str:
    return f"{name}, {n} episodes"


def _passes(of: tuple[str, int], share: float) -> bool:
    least, most = TARGETS[of]
    return verdict(_line(*of), share, ".1%", least=least, most=most)


if __name__ == "__main__":
    sys.exit(main())
