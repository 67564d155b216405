"""The result of an evaluation: a dict of numbers, with its episodes; and the comparison of two results.

    rounds of episodes ──▶ numbers, arrays, attributes ──▶ EvalResult ◀──▶ JSON
    returns [N] ──▶ mean, spread, quantiles, interval of the mean        └── compare(a, b): pairs of episodes by seed

The interval of a mean of few and skewed returns is the bootstrap's, with corrected levels: the bias-corrected and
accelerated one (BCa) of Efron, *Better Bootstrap Confidence Intervals* (1987), at the levels that Hesterberg, *What
Teachers Should Know About the Bootstrap* (2015), expands for small samples.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from swath import seeds
from swath.extras import import_extra
from swath.report.atomic import replace_atomically
from swath.rollout.hosts.base import Seeding

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Side: TypeAlias = tuple[float, Floats]  # weight of a mean in the total, and its values [N]
Stopped: TypeAlias = Literal["fixed", "ci", "max"]

CONFIDENCE = 0.95
RESAMPLES = 2_000

_NORMAL = NormalDist()
_MAX_INDICES = 2**22  # drawn in one go, which bounds the memory at 32 MiB
_MARK, _FORMAT = "swath_eval_result", 2
_ABOUT = ("step", "seeding", "stopped", "retries", "video_paths", "video_lengths", "video_truncated")
FEWEST_PAIRS = 5  # for a verdict
_ADVICE = "compare(..., paired=False) resamples the two sides apart"

NO_SEED = -1  # the seed of an episode without one

# The fields of an episode, in this order.
COLUMNS = {"returns": np.float64, "lengths": np.int64, "terminated": np.bool_, "truncated": np.bool_, "seeds": np.int64}
EpisodeRow: TypeAlias = tuple[float, int, bool, bool, int]
Episodes: TypeAlias = NDArray[np.void]  # [N], with these columns as fields


def episodes_of(rows: Mapping[int, EpisodeRow]) -> Episodes:
    """Return the rows in the order of their episodes' numbers."""
    return np.array([rows[number] for number in sorted(rows)], np.dtype([*COLUMNS.items()], align=True))


class EvalResult(dict[str, Any]):
    """The numbers of one evaluation by name, e.g. `"eval/reward"`, which the caller owns. Attributes have the episodes.

    Args:
        metrics: the numbers, under their names with prefix.
        episodes: the episodes.
        about: values of the attributes from `step` on.

    Attributes:
        returns: float64 [N], one per episode, in episode order as the next four.
        lengths: int64 [N], env steps.
        terminated: bool [N].
        truncated: bool [N], cuts by `max_steps` included.
        seeds: int64 [N], -1 for an episode without a seed.
        step: the training step of the request, or a count of evaluations.
        seeding: how far seeds reached: `"episode"`, `"layout"` or `"none"`.
        stopped: the reason of its end: `"fixed"`, `"ci"` or `"max"`.
        retries: number of repetitions after losses of workers.
        video_paths: files that were written, one per filmed episode.
        video_lengths: frames of each filmed episode.
        video_truncated: whether filming stopped early because the frames took too much memory.
    """

    returns: Floats
    lengths: Ints
    terminated: Bools
    truncated: Bools
    seeds: Ints
    step: int = 0
    seeding: Seeding = "episode"
    stopped: Stopped = "fixed"
    retries: int = 0
    video_paths: tuple[str, ...] = ()
    video_lengths: tuple[int, ...] = ()
    video_truncated: bool = False

    def __init__(self, metrics: Mapping[str, Any], episodes: Episodes, **facts: Any) -> None:
        super().__init__(metrics)
        for name, value in {**facts, **{name: episodes[name].copy() for name in COLUMNS}}.items():
            setattr(self, name, value)

    def to_tensordict(self) -> TensorDict:
        """Return a flat TensorDict of batch size [] with the same keys: float64 and int64 scalars, CPU tensors."""
        doubles = {name: torch.float64 for name, value in self.items() if isinstance(value, float)}
        tensors = {name: torch.as_tensor(value, dtype=doubles.get(name)) for name, value in self.items()}
        return TensorDict({name: tensor.detach().cpu() for name, tensor in tensors.items()}, batch_size=[])

    def to_csv(self, path: str | Path) -> None:
        """Write the episodes to a CSV file: `episode`, `return`, `length`, `terminated`, `truncated`, `seed`.

        Args:
            path: the file, which appears whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        columns = self._columns()
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        with replace_atomically(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *rows])

    def to_dataframe(self) -> Any:
        """Return the episodes as a DataFrame of pandas, with the columns of `to_csv`.

        Raises:
            ImportError: pandas is not installed; the message has the command that installs it.
        """
        return import_extra("pandas", extra="pandas", purpose="for to_dataframe()").DataFrame(self._columns())

    def _columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns `[N]` of the table of episodes."""
        columns = {name.removesuffix("s"): getattr(self, name) for name in COLUMNS}
        return {"episode": np.arange(len(self.returns)), **columns}

    def to_json(self) -> str:
        """Return the result without its films as JSON; a number that is not finite is `{"float": "nan"}`."""
        parts = {
            "metrics": {name: value for name, value in self.items() if name.rpartition("/")[2] != "video"},
            "episodes": {name: getattr(self, name).tolist() for name in COLUMNS},
            "about": {name: getattr(self, name) for name in _ABOUT},
        }
        return json.dumps(_to_json({_MARK: _FORMAT, **parts}), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> EvalResult:
        """Read the result that `to_json` wrote, equal in every number.

        Raises:
            ValueError: the text is not the JSON of a result; the message names the part that is missing or wrong.
        """
        try:
            return cls._read(json.loads(text, object_hook=_unpack))
        except (ArithmeticError, AttributeError, RuntimeError, KeyError, TypeError, ValueError) as error:
            cause = f"there is no entry {error}" if isinstance(error, KeyError) else str(error)
            message = f"this is not the JSON of an EvalResult, format {_FORMAT}: {cause}"
            raise ValueError(f"{message}; pass the whole text of to_json()") from error

    @classmethod
    def _read(cls, parts: Any) -> EvalResult:
        if not isinstance(parts, dict) or parts.get(_MARK) != _FORMAT:
            raise ValueError(f"it is no object whose entry {_MARK!r} is {_FORMAT}")
        rows = zip(*(parts["episodes"][name] for name in COLUMNS), strict=True)
        facts = {name: parts["about"][name] for name in _ABOUT}
        facts = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
        return cls(parts["metrics"], episodes_of(dict(enumerate(rows))), **facts)


def _to_json(value: Any) -> Any:
    """Replace tensors and numbers that are not finite by objects that JSON can hold."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return {"dtype": kind, "shape": list(value.shape), "values": _to_json(value.flatten().tolist())}
    if isinstance(value, dict):
        return {name: _to_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_to_json, value)]
    return {"float": str(value)} if isinstance(value, float) and not np.isfinite(value) else value


def _unpack(entry: dict[str, Any]) -> Any:
    """Return the tensor or the number that `_to_json` wrote, or any other object without a change."""
    if entry.keys() == {"float"}:
        return float(entry["float"])
    if entry.keys() != {"dtype", "shape", "values"}:
        return entry
    return torch.tensor(entry["values"], dtype=getattr(torch, entry["dtype"])).reshape(entry["shape"])


# Two results


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

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

    def verdict(self, a: str = "a", b: str = "b") -> str:
        """Return a sentence that says which policy is better, or that neither is shown to be.

        Fewer than 5 episodes give no verdict: of 2 the interval is so narrow that every second one would be wrong.

        Args:
            a: name of the reference.
            b: name of the policy that was compared with it.
        """
        if math.isnan(self.ci_low) or math.isnan(self.ci_high):
            return "No comparison: returns that are not finite have no interval."
        if self.n < FEWEST_PAIRS * (1 if self.paired else 2):
            return f"No verdict: {self.n} episodes are too few; play {FEWEST_PAIRS} or more with each policy."
        if self.ci_low == self.ci_high == 0:
            return f"{a} and {b} have the same return in every episode."
        if self.ci_low > 0:
            return f"{b} is better than {a}: the whole interval is above 0."
        if self.ci_high < 0:
            return f"{a} is better than {b}: the whole interval is below 0."
        return f"Neither is shown to be better: the interval holds 0; {5 * self.n} episodes narrow it."


def compare(
    result_a: EvalResult,
    result_b: EvalResult,
    *,
    confidence: float = CONFIDENCE,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
    paired: bool = True,
) -> Comparison:
    """Compare two results: how much better b is than a, with an interval, and how often.

    Evaluations with the same `seed` play the same episodes, so their returns are paired by seed and the luck of the
    episode cancels out. With `paired=False` the two sides are resampled apart, and the probability is over all
    pairs of an episode of a and one of b.

    Args:
        result_a: the reference.
        result_b: the result to compare with it.
        confidence: confidence of the interval, which has the method of an evaluation's interval.
        n_resamples: resamples of the bootstrap.
        seed: root seed of the resampling.
        paired: pair episodes by seed.

    Returns:
        The comparison. NaN returns give NaN, and so do infinite ones and a single episode on one side for the interval.

    Raises:
        ValueError: paired, but the episodes have no seeds, or fewer than 2 in common; or a number is out of range.
    """
    a, b = _pairs(result_a, result_b) if paired else (result_a.returns, result_b.returns)
    with np.errstate(invalid="ignore"):
        if paired:
            sides, n, wins = [(1.0, b - a)], len(a), (np.sign(b - a) + 1.0).mean() / 2.0
        else:
            sides, n, ordered = [(-1.0, a), (1.0, b)], len(a) + len(b), np.sort(a)
            wins = (np.searchsorted(ordered, b, "left") + np.searchsorted(ordered, b, "right")).mean() / (2 * len(a))
            wins = math.nan if np.isnan([*a, *b]).any() else wins
        low, high = interval(*sides, confidence=confidence, n_resamples=n_resamples, seed=seed)
        difference = sum(weight * values.mean() for weight, values in sides)
    return Comparison(float(difference), low, high, float(wins), n, paired)


def _pairs(a: EvalResult, b: EvalResult) -> tuple[Floats, Floats]:
    """Return the returns of both sides in the episodes that both have played."""
    for name, result in (("result_a", a), ("result_b", b)):
        if result.seeding != "episode":
            raise ValueError(f"{name}.seeding is {result.seeding!r}: pairs need 'episode'; {_ADVICE}")
    common, rows_a, rows_b = np.intersect1d(a.seeds, b.seeds, return_indices=True)
    if len(common) < 2:
        text = f"result_a ({len(a.seeds)} episodes) and result_b ({len(b.seeds)}) have {len(common)} seeds in common"
        raise ValueError(f"{text}, pairs need 2 or more: evaluate both with the same seed, or {_ADVICE}")
    return a.returns[rows_a], b.returns[rows_b]


# Numbers of N episodes: pure functions of numpy vectors


def summarise(returns: Floats, lengths: Ints, root: int | None = 0) -> dict[str, float | int]:
    """Return the statistics of episodes, under their names without prefix.

    Args:
        returns: [N] float64, N ≥ 1.
        lengths: [N] int64, env steps of each episode.
        root: root seed of the evaluation, from which the interval's seed is derived; None counts as 0.

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
    """Return the mean of the values [N] without the floor(N/4) lowest and highest; NaN if a value is NaN.

    Source: Agarwal et al., *Deep Reinforcement Learning at the Edge of the Statistical Precipice* (2021).
    """
    if np.isnan(values).any():
        return float("nan")
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def interval(
    *sides: Side, confidence: float = CONFIDENCE, n_resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Return an interval of the weighted sum of the sides' means; each side is resampled independently.

    It lies between the sums of the lowest and of the highest values, and has no width if the values of each side are
    equal. NaN for a side of fewer than two values, and if a value is NaN or infinite.

    Args:
        *sides: weights and values.
        confidence: probability that the interval contains the true sum, between 0 and 1.
        n_resamples: number of samples that are drawn, with replacement, from the values.
        seed: root seed, from which the seed of the resampling is derived.

    Raises:
        ValueError: a number out of range.
    """
    if not 0.0 < confidence < 1.0 or n_resamples < 1:
        raise ValueError(f"confidence={confidence!r}, n_resamples={n_resamples!r}: take 0.95, say, and 1 or more")
    if any(len(values) < 2 or not np.isfinite(values).all() for _, values in sides):
        return math.nan, math.nan
    draws = np.random.Generator(np.random.PCG64(seeds.derive(seed, "bootstrap")))
    with np.errstate(invalid="ignore", over="ignore"):
        totals = np.zeros(n_resamples)
        for weight, values in sides:
            n, rows = len(values), max(1, _MAX_INDICES // len(values))
            for start in range(0, n_resamples, rows):
                drawn = draws.integers(0, n, size=(min(rows, n_resamples - start), n))
                totals[start : start + rows] += weight * values[drawn].mean(axis=1)
        low, high = np.quantile(totals, levels(confidence, *sides))
    return float(low), float(high)


def mean_interval(values: Floats, root: int | None = 0) -> tuple[float, float]:
    """Return the 95 % interval of the mean of the values [N], by 2,000 resamples under a root seed (None counts as 0).

    NaN for a single value, and if a value is NaN or infinite.
    """
    return interval((1.0, values), seed=root or 0)


def levels(confidence: float, *sides: Side) -> tuple[float, float]:
    """Return the two levels at which quantiles of the resampled totals are the ends of the interval.

    Two effects make the plain percentiles too narrow for few values: resampled means spread less than means do, by
    √(1 - 1/N), and the spread of the values is an estimate. Student's quantile makes up for both. Also, the mean of
    skewed values is skewed, and spreads more the higher it lies: BCa moves both levels for that. Of its two constants,
    bias and acceleration, each is a sixth of the mean's skewness, to the order of 1/√N (by Edgeworth's expansion), so
    that neither has to be counted from the resamples.
    """
    deviations = [weight * (values - values.mean()) for weight, values in sides]
    scale = np.abs(np.concatenate(deviations)).max()
    if not 0.0 < scale < math.inf:  # no spread, or more than a float can hold: nothing to correct
        return (1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0
    n = np.array([len(deviation) for deviation in deviations])
    second, third = (np.array([np.mean((deviation / scale) ** k) for deviation in deviations]) for k in (2, 3))
    resampled, variance = second / n, second / (n - 1)  # variances of each side's mean: among resamples, estimated
    freedom = variance.sum() ** 2 / (variance**2 / (n - 1)).sum()  # Welch's; N - 1 for a single side
    reach = student(confidence, freedom) * math.sqrt(variance.sum() / resampled.sum())
    a = (third / n**2).sum() / resampled.sum() ** 1.5 / 6.0  # bias and acceleration
    low, high = (_NORMAL.cdf(a + (a + z) / max(1.0 - a * (a + z), 1e-9)) for z in (-reach, reach))  # all beyond a pole
    return low, high


def student(confidence: float, freedom: float) -> float:
    """Return the half-width of Student's t interval in standard errors, expanded around the normal quantile.

    At 95 % it is right within 0.3 % from 4 degrees of freedom on. For fewer it is too short, but still so long that
    the interval contains all values.
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
