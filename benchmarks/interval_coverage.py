"""Measure how often the 95 % interval of an evaluation, and other intervals, hold the true mean.

    python benchmarks/interval_coverage.py [--quick]

Each run draws N returns from a source whose mean is known and computes the interval of every contender: the percentiles
of the bootstrap, Student's t, and ours. A sample of equal returns does not show that there are others, hence the column
for those. Ends with 1 if ours misses a target.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rounds import ended, parser, table, verdict
from swath.evaluation.result import mean_interval, student

Floats = NDArray[np.float64]
Source = Callable[[np.random.Generator, tuple[int, ...]], Floats]

EPISODES = (5, 10, 20, 50)
RESAMPLES = 2000
TAIL = 0.025


def mix(share: float) -> tuple[Source, float]:
    """Return a source of returns of 3, with 41 for a share of the episodes, and its mean."""
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


def intervals(values: Floats, draws: np.random.Generator) -> dict[str, tuple[Floats, Floats]]:
    """Return lower and upper ends [runs] of each contender's intervals."""
    n = values.shape[1]
    means = np.array([row[draws.integers(0, n, size=(RESAMPLES, n))].mean(axis=1) for row in values])
    centre, reach = values.mean(axis=1), student(0.95, n - 1) * values.std(axis=1, ddof=1) / np.sqrt(n)
    low, high = np.array([mean_interval(row, root) for root, row in enumerate(values)]).T
    return {
        "ours": (low, high),
        "percentiles": tuple(np.quantile(means, (TAIL, 1 - TAIL), axis=1)),
        "Student's t": (centre - reach, centre + reach),
    }


def row(name: str, n: int, runs: int) -> dict[str, float]:
    """Return the share of intervals that hold the mean, by contender, and the share without width."""
    source, mean = SOURCES[name]
    draws = np.random.default_rng([n, list(SOURCES).index(name)])
    values = source(draws, (runs, n))
    shares = {
        contender: float(np.mean((low <= mean) & (mean <= high)))
        for contender, (low, high) in intervals(values, draws).items()
    }
    return shares | {"no width": float(np.mean(np.ptp(values, axis=1) == 0))}


def main() -> int:
    """Print the table; 1 if a target is missed."""
    runs = 200 if parser(__doc__).parse_args().quick else 1000
    rows = {(name, n): row(name, n, runs) for name in SOURCES for n in EPISODES}
    columns = dict.fromkeys(next(iter(rows.values())), ".1%")
    lines = {f"{name}, {n} episodes": list(shares.values()) for (name, n), shares in rows.items()}
    table("How often 95 % intervals hold the mean", columns, lines)
    return ended(
        [
            verdict(f"{name}, {n} episodes", rows[name, n]["ours"], ".1%", minimum=minimum, maximum=maximum)
            for (name, n), (minimum, maximum) in TARGETS.items()
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
