"""Which of two policies is better, from two evaluations on the same episodes.

result_a ─┐  the same seeds                                    ┌─▶ difference and its interval
          ├────────────────▶ pairs (a_i, b_i) [n] ──▶ b_i - a_i ┤
result_b ─┘                                                    └─▶ share of pairs with b_i > a_i
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from swath.evaluation.result import NO_SEED, EvalResult
from swath.evaluation.statistics import CONFIDENCE, RESAMPLES, Bootstrap, Floats, Ints

_WAY_OUT = "compare(..., paired=False) resamples the two sides apart"


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        difference: mean return of b minus mean return of a, over the episodes compared.
        ci_low: lower end of the interval of the difference.
        ci_high: upper end.
        probability_of_improvement: share of pairs in which b has the higher return, ties counting half.
        n: how many pairs were compared; unpaired, how many episodes both sides have together.
        paired: whether episodes were paired by seed.
    """

    difference: float
    ci_low: float
    ci_high: float
    probability_of_improvement: float
    n: int
    paired: bool


def compare(
    result_a: EvalResult,
    result_b: EvalResult,
    *,
    confidence: float = CONFIDENCE,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
    paired: bool = True,
) -> Comparison:
    """How much better b is than a, with an interval, and how often.

    Evaluations with the same `seed` play the same episodes, so their returns are paired by seed and what is luck of
    the episode cancels out. With `paired=False` the two sides are resampled apart, and the probability is over all
    pairs of an episode of a and one of b.

    Args:
        result_a: the reference.
        result_b: what may be better.
        confidence: of the interval, which is made like that of an evaluation.
        n_resamples: resamples of the bootstrap.
        seed: root seed of the resampling.
        paired: pair episodes by seed.

    Returns:
        The comparison. NaN returns give NaN, and so do infinite ones and a single episode on one side for the interval.

    Raises:
        ValueError: paired, but the episodes have no seeds of their own or fewer than 2 in common; or a number out of
            range.
        TypeError: one of them is no result.
    """
    for name, given in (("result_a", result_a), ("result_b", result_b)):
        if not isinstance(given, EvalResult):
            raise TypeError(f"{name} is of type {type(given).__name__}; give an EvalResult, as evaluations return it")
    bootstrap = Bootstrap(confidence, n_resamples, seed)
    if paired:
        return _compare_pairs(*_pairs(result_a, result_b), bootstrap)
    return _compare_apart(result_a.returns, result_b.returns, bootstrap)


def _pairs(a: EvalResult, b: EvalResult) -> tuple[Floats, Floats]:
    seeds_a, seeds_b = _own_seeds("result_a", a), _own_seeds("result_b", b)
    common, rows_a, rows_b = np.intersect1d(seeds_a, seeds_b, assume_unique=True, return_indices=True)
    if len(common) < 2:
        raise ValueError(
            f"result_a ({len(seeds_a)} seeded episodes) and result_b ({len(seeds_b)}) have {len(common)} seeds in "
            f"common, pairs need 2 or more: evaluate both with the same seed, or {_WAY_OUT}"
        )
    return a.returns[a.seeds != NO_SEED][rows_a], b.returns[b.seeds != NO_SEED][rows_b]


def _own_seeds(name: str, result: EvalResult) -> Ints:
    if result.seeding != "episode":
        raise ValueError(f"{name}.seeding is {result.seeding!r}: pairs need 'episode'; {_WAY_OUT}")
    own: Ints = result.seeds[result.seeds != NO_SEED]
    if len(np.unique(own)) != len(own):
        raise ValueError(f"{name} has several episodes with one seed, which leaves the pairs open; {_WAY_OUT}")
    return own


def _compare_pairs(a: Floats, b: Floats, bootstrap: Bootstrap) -> Comparison:
    with np.errstate(invalid="ignore"):
        gains = b - a
        difference = float(gains.mean())
    low, high = bootstrap.interval((1.0, gains))
    return Comparison(difference, low, high, _share_positive(np.sign(gains)), len(gains), paired=True)


def _share_positive(signs: Floats) -> float:
    """Mean of 1 for a gain, ½ for a tie, 0 for a loss; NaN where one is NaN."""
    return float((signs + 1.0).mean() / 2.0)


def _compare_apart(a: Floats, b: Floats, bootstrap: Bootstrap) -> Comparison:
    low, high = bootstrap.interval((-1.0, a), (1.0, b))
    with np.errstate(invalid="ignore"):
        difference = float(b.mean() - a.mean())
    return Comparison(difference, low, high, _share_of_wins(a, b), len(a) + len(b), paired=False)


def _share_of_wins(a: Floats, b: Floats) -> float:
    """Share of all pairs with b > a, ties half; sorted search keeps it at N log N."""
    if np.isnan(a).any() or np.isnan(b).any():
        return math.nan
    ordered = np.sort(a)
    below, not_above = np.searchsorted(ordered, b, side="left"), np.searchsorted(ordered, b, side="right")
    return float((below + not_above).sum() / (2 * len(a) * len(b)))
