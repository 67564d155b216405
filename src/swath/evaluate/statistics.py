"""From the returns and lengths of N episodes to the numbers of an evaluation: pure functions of numpy vectors.

returns [N] ──▶ mean, spread, extremes, median, interquartile mean ─┐
            └─▶ interval of the mean ───────────────────────────────┼──▶ summarise() ──▶ {"reward": …, …}
lengths [N] ──▶ frames, mean length ────────────────────────────────┘
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from swath.evaluate.interval import Floats, mean_interval

Ints: TypeAlias = NDArray[np.int64]


def summarise(returns: Floats, lengths: Ints, root: int | None = 0) -> dict[str, float | int]:
    """The numbers that follow from the episodes alone, under their names without prefix.

    Args:
        returns: [N] float64, N ≥ 1.
        lengths: [N] int64, env steps of each episode.
        root: root seed of the evaluation, from which that of the interval is derived; None counts as 0.

    Returns:
        `reward`, `reward_std`, `reward_min`, `reward_max`, `reward_median`, `reward_iqm`, `reward_ci_low`,
        `reward_ci_high`, `num_episodes`, `frames`, `episode_length`.

    Raises:
        ValueError: no episode, or vectors of different lengths.
    """
    if len(returns) == 0 or len(returns) != len(lengths):
        raise ValueError(f"got {len(returns)} returns and {len(lengths)} lengths; each episode needs one of both")
    low, high = mean_interval(returns, root)
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
