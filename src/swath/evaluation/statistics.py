"""From the returns and lengths of N episodes to the numbers of an evaluation: pure functions of numpy vectors.

returns [N] ──▶ mean, spread, extremes, median, interquartile mean ─┐
            └─▶ interval of the mean ───────────────────────────────┼──▶ summarise() ──▶ {"reward": …, …}
lengths [N] ──▶ frames, mean length ────────────────────────────────┘

The interval of a mean of few and skewed returns is the bootstrap's, with corrected levels: the bias-corrected and
accelerated one (BCa) of Efron, *Better Bootstrap Confidence Intervals* (1987), at the levels that Hesterberg, *What
Teachers Should Know About the Bootstrap* (2015), expands for small samples.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from swath import seeds

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Side: TypeAlias = tuple[float, Floats]  # weight of a mean in the total, and the values [N] that it is the mean of

CONFIDENCE = 0.95
RESAMPLES = 2_000

_NORMAL = NormalDist()
_MOST_AT_ONCE = 2**22  # indices drawn in one go, which bounds the memory at 32 MiB


def summarise(returns: Floats, lengths: Ints, root: int | None = 0) -> dict[str, float | int]:
    """The numbers that follow from the episodes alone, under their names without prefix.

    Args:
        returns: [N] float64, N ≥ 1.
        lengths: [N] int64, env steps of each episode.
        root: root seed of the evaluation, from which that of the interval is derived; None counts as 0.

    Returns:
        `reward`, `reward_std`, `reward_min`, `reward_max`, `reward_median`, `reward_iqm`, `reward_ci_low`,
        `reward_ci_high`, `num_episodes`, `frames`, `episode_length`.
    """
    low, high = mean_interval(returns, root)
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            "reward": float(returns.mean()),
            "reward_std": float(returns.std(ddof=int(len(returns) > 1))),
            "reward_min": float(returns.min()),
            "reward_max": float(returns.max()),
            "reward_median": float(np.median(returns)),
            "reward_iqm": interquartile_mean(returns),
            "reward_ci_low": low,
            "reward_ci_high": high,
            "num_episodes": len(returns),
            "frames": int(lengths.sum()),
            "episode_length": float(lengths.mean()),
        }


def interquartile_mean(values: Floats) -> float:
    """Mean of the sorted values [N] without the floor(N/4) lowest and as many highest; NaN where a value is NaN.

    Source: Agarwal et al., *Deep Reinforcement Learning at the Edge of the Statistical Precipice* (2021).
    """
    if np.isnan(values).any():
        return float("nan")
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def interval(
    *sides: Side, confidence: float = CONFIDENCE, n_resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Interval of the weighted sum of the sides' means, each side resampled by itself.

    It does not reach beyond what the lowest and the highest values give, and has no width where the values of each
    side are equal. NaN for a side of fewer than two values, and where a value is NaN or infinite.

    Args:
        *sides: what is summed.
        confidence: how often it shall hold the true sum, between 0 and 1.
        n_resamples: how many samples are drawn, with replacement, from the values.
        seed: root seed, from which that of the resampling is derived.

    Raises:
        ValueError: a number out of range.
    """
    if not 0.0 < confidence < 1.0 or n_resamples < 1:
        raise ValueError(f"confidence={confidence!r}, n_resamples={n_resamples!r}: take 0.95, say, and 1 or more")
    if any(len(values) < 2 or not np.isfinite(values).all() for _, values in sides):
        return math.nan, math.nan
    draws = np.random.Generator(np.random.PCG64(seeds.derive(seed, "bootstrap")))
    with np.errstate(invalid="ignore", over="ignore"):
        means = [weight * _means(values, n_resamples, draws) for weight, values in sides]
        low, high = np.quantile(np.sum(means, axis=0), levels(confidence, *sides))
    return float(low), float(high)


def _means(values: Floats, total: int, draws: np.random.Generator) -> Floats:
    """Means of samples of size N, drawn with replacement from the values [N]."""
    n = len(values)
    rows = max(1, _MOST_AT_ONCE // n)
    sizes = [min(rows, total - start) for start in range(0, total, rows)]
    return np.concatenate([values[draws.integers(0, n, size=(size, n))].mean(axis=1) for size in sizes])


def mean_interval(values: Floats, root: int | None = 0) -> tuple[float, float]:
    """95 % interval of the mean of the values [N], by 2,000 resamples under a root seed (None counts as 0).

    NaN for a single value, and where a value is NaN or infinite.
    """
    return interval((1.0, values), seed=root or 0)


def levels(confidence: float, *sides: Side) -> tuple[float, float]:
    """Which two quantiles of the resampled totals are the ends of the interval.

    Two things make the plain percentiles too narrow for few values: resampled means spread less than means do, by
    √(1 - 1/N), and how much the values spread is itself an estimate. Going out to Student's quantile makes up for both.
    And the mean of skewed values is skewed too, and the further up it lies the more it spreads: BCa moves both levels
    for that. Of its two constants, bias and acceleration, each is a sixth of the mean's skewness, to the order of 1/√N
    (by Edgeworth's expansion), so that neither has to be counted from the resamples.
    """
    deviations = [weight * (values - values.mean()) for weight, values in sides]
    scale = np.abs(np.concatenate(deviations)).max()
    if not 0.0 < scale < math.inf:  # no spread, or more of it than a float can hold: nothing to correct
        return (1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0
    n = np.array([len(each) for each in deviations])
    second, third = (np.array([np.mean((each / scale) ** k) for each in deviations]) for k in (2, 3))
    resampled, variance = second / n, second / (n - 1)  # of each side's mean: among resamples, and estimated
    freedom = variance.sum() ** 2 / (variance**2 / (n - 1)).sum()  # Welch's; N - 1 for a single side
    reach = student(confidence, freedom) * math.sqrt(variance.sum() / resampled.sum())
    a = (third / n**2).sum() / resampled.sum() ** 1.5 / 6.0  # bias and acceleration
    low, high = (_NORMAL.cdf(a + (a + z) / max(1.0 - a * (a + z), 1e-9)) for z in (-reach, reach))  # all beyond a pole
    return low, high


def student(confidence: float, freedom: float) -> float:
    """How many standard errors Student's t interval reaches to each side, expanded around the normal quantile.

    At 95 % it is right within 0.3 % from 4 degrees of freedom on. For fewer it is too short, but still so far out that
    the interval takes in all values there are.
    Source: Abramowitz & Stegun, *Handbook of Mathematical Functions*, 26.7.5.
    """
    z = -_NORMAL.inv_cdf((1.0 - confidence) / 2.0)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
