"""From the returns and lengths of N episodes to the numbers of an evaluation: pure functions of numpy vectors.

returns [N] ──▶ mean, spread, extremes, median, interquartile mean ─┐
            └─▶ resample 2,000 times ──▶ quantiles of the means ────┼──▶ summarise() ──▶ {"reward": …, …}
lengths [N] ──▶ frames, mean length ────────────────────────────────┘
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from swath import seeds

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

CONFIDENCE = 0.95
RESAMPLES = 2_000
_MOST_AT_ONCE = 2**22  # indices drawn in one go, which bounds the memory at 32 MiB


def summarise(returns: Floats, lengths: Ints, root: int | None = 0) -> dict[str, float | int]:
    """The numbers that follow from the episodes alone, under their names without prefix.

    Args:
        returns: [N] float64, N ≥ 1.
        lengths: [N] int64, env steps of each episode.
        root: root seed of the evaluation, from which the bootstrap's is derived; None counts as 0.

    Returns:
        `reward`, `reward_std`, `reward_min`, `reward_max`, `reward_median`, `reward_iqm`, `reward_ci_low`,
        `reward_ci_high`, `num_episodes`, `frames`, `episode_length`.

    Raises:
        ValueError: no episode, or vectors of different lengths.
    """
    if len(returns) == 0 or len(returns) != len(lengths):
        raise ValueError(f"got {len(returns)} returns and {len(lengths)} lengths; each episode needs one of both")
    low, high = mean_interval(returns, generator(root))
    return {
        **_moments(returns),
        "reward_ci_low": low,
        "reward_ci_high": high,
        "num_episodes": len(returns),
        "frames": int(lengths.sum()),
        "episode_length": float(lengths.mean()),
    }


def _moments(returns: Floats) -> dict[str, float]:
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            "reward": float(returns.mean()),
            "reward_std": sample_std(returns),
            "reward_min": float(returns.min()),
            "reward_max": float(returns.max()),
            "reward_median": float(np.median(returns)),
            "reward_iqm": interquartile_mean(returns),
        }


def sample_std(values: Floats) -> float:
    """Standard deviation with divisor N-1; 0.0 for a single value, NaN where a value is NaN."""
    if len(values) == 1:
        return float("nan") if np.isnan(values[0]) else 0.0
    return float(values.std(ddof=1))


def interquartile_mean(values: Floats) -> float:
    """Mean of the sorted values [N] without the floor(N/4) lowest and as many highest; NaN where a value is NaN.

    Source: Agarwal et al., *Deep Reinforcement Learning at the Edge of the Statistical Precipice* (2021).
    """
    if np.isnan(values).any():
        return float("nan")
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def generator(root: int | None) -> np.random.Generator:
    """The generator of all resampling under one root seed; None counts as 0."""
    return np.random.Generator(np.random.PCG64(seeds.derive(root or 0, "bootstrap")))


def resampled_means(values: Floats, draws: np.random.Generator, resamples: int = RESAMPLES) -> Floats:
    """Means [resamples] of samples of size N, drawn with replacement from the values [N]."""
    n = len(values)
    rows = max(1, _MOST_AT_ONCE // n)
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    with np.errstate(invalid="ignore", over="ignore"):
        return np.concatenate([values[draws.integers(0, n, size=(size, n))].mean(axis=1) for size in sizes])


def percentile_interval(means: Floats, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The two quantiles, linearly interpolated, that leave (1 - confidence)/2 of the means outside on each side."""
    tail = round((1.0 - confidence) / 2.0, 12)  # 0.025 itself, not the float beside it
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)


def mean_interval(values: Floats, draws: np.random.Generator) -> tuple[float, float]:
    """Percentile bootstrap of the mean of the values [N], at 95 % with 2,000 resamples; NaN for a single value."""
    if len(values) == 1 or np.isnan(values).any():
        return float("nan"), float("nan")
    return percentile_interval(resampled_means(values, draws))
