"""What one evaluation hands out: a dict of numbers, with the episodes behind them; and how two of them compare.

rounds of episodes ──▶ numbers, arrays, where they came from ──▶ EvalResult ◀──▶ JSON
                                                                     └── compare(a, b): pairs of episodes by seed
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from swath.evaluation.options import Stopped
from swath.evaluation.statistics import CONFIDENCE, RESAMPLES, Floats, Ints, interval
from swath.rollout.hosts.base import Seeding

Bools: TypeAlias = NDArray[np.bool_]

_MARK, _FORMAT = "swath_eval_result", 1
_PROVENANCE = ("step", "seeding", "stopped", "retries")
_FILMS = ("video_paths", "video_lengths", "video_truncated")
_WAY_OUT = "compare(..., paired=False) resamples the two sides apart"

NO_SEED = -1  # of an episode that had none of its own

# What entries of results are called, those included that are there only if they are asked for.
NAMES = (
    *("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm", "reward_ci_low"),
    *("reward_ci_high", "num_episodes", "frames", "episode_length", "duration_s", "fps"),
    *("step", "policy_version", "video", "episode_rewards", "episode_lengths"),
)

# What is known of each episode, in this order.
COLUMNS = {"returns": np.float64, "lengths": np.int64, "terminated": np.bool_, "truncated": np.bool_, "seeds": np.int64}
EpisodeRow: TypeAlias = tuple[float, int, bool, bool, int]
Episodes: TypeAlias = NDArray[np.void]  # [N], with these columns as fields


def episodes_of(rows: Mapping[int, EpisodeRow]) -> Episodes:
    """Rows by the numbers of their episodes, brought into order."""
    return np.array([rows[number] for number in sorted(rows)], np.dtype([*COLUMNS.items()], align=True))


class EvalResult(dict[str, Any]):
    """The numbers of one evaluation by name, e.g. `"eval/reward"`, owned by the caller; its episodes are attributes.

    Args:
        metrics: the numbers, under their names with prefix.
        episodes: the episodes behind them.
        about: values of the attributes from `step` on.

    Attributes:
        returns: float64 [N], one per episode, in episode order as all of these.
        lengths: int64 [N], env steps.
        terminated: bool [N].
        truncated: bool [N], cuts by `max_steps` included.
        seeds: int64 [N], -1 where an episode had none of its own.
        step: the training step the evaluation was asked for, or a count of evaluations.
        seeding: how far seeds reached: `"episode"`, `"layout"` or `"none"`.
        stopped: what ended it: `"fixed"`, `"ci"` or `"max"`.
        retries: how often it was repeated after a worker was lost.
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

    def __init__(self, metrics: Mapping[str, Any], episodes: Episodes, **about: Any) -> None:
        super().__init__(metrics)
        for name, value in {**about, **{name: episodes[name].copy() for name in COLUMNS}}.items():
            setattr(self, name, value)

    def to_tensordict(self) -> TensorDict:
        """A flat TensorDict of batch size [] with the same keys: float64 and int64 scalars, tensors on the CPU."""
        doubles = {name: torch.float64 for name, value in self.items() if isinstance(value, float)}
        tensors = {name: torch.as_tensor(value, dtype=doubles.get(name)) for name, value in self.items()}
        return TensorDict({name: tensor.detach().cpu() for name, tensor in tensors.items()}, batch_size=[])

    def to_json(self) -> str:
        """The whole result but its films as strict JSON; numbers that are not finite are written as strings."""
        parts = {
            "metrics": {name: _pack(value) for name, value in self.items() if name.rpartition("/")[2] != "video"},
            "episodes": {name: _pack(getattr(self, name).tolist()) for name in COLUMNS},
            "provenance": {name: getattr(self, name) for name in _PROVENANCE},
            "films": {name: getattr(self, name) for name in _FILMS},
        }
        return json.dumps({_MARK: _FORMAT, **parts}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> EvalResult:
        """The result that `to_json` wrote, equal in every number.

        Raises:
            ValueError: the text is not JSON, or not that of a result.
        """
        parts = json.loads(text)
        if not isinstance(parts, dict) or parts.get(_MARK) != _FORMAT:
            raise ValueError(f"this is not the JSON of an EvalResult, format {_FORMAT}")
        rows = zip(*(_unpack(parts["episodes"][name]) for name in COLUMNS), strict=True)
        about = {name: tuple(value) if isinstance(value, list) else value for name, value in parts["films"].items()}
        metrics = {name: _unpack(value) for name, value in parts["metrics"].items()}
        return cls(metrics, episodes_of(dict(enumerate(rows))), **parts["provenance"], **about)


def _pack(value: Any) -> Any:
    """A bool, int, float, tensor, or list of numbers, as what `json.dumps(…, allow_nan=False)` takes."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return {"dtype": kind, "shape": list(value.shape), "values": _pack(value.flatten().tolist())}
    if isinstance(value, list):
        return [_pack(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    return value


def _unpack(value: Any) -> Any:
    """The value that `_pack` wrote."""
    if isinstance(value, dict):
        values = torch.tensor(_unpack(value["values"]), dtype=getattr(torch, value["dtype"]))
        return values.reshape(value["shape"])
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    return float(value) if isinstance(value, str) else value


# Two results


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
    """
    bootstrap = partial(interval, confidence=confidence, n_resamples=n_resamples, seed=seed)
    with np.errstate(invalid="ignore"):
        if paired:
            a, b = _pairs(result_a, result_b)
            gains = b - a
            low, high = bootstrap((1.0, gains))
            wins = float((np.sign(gains) + 1.0).mean() / 2.0)
            return Comparison(float(gains.mean()), low, high, wins, len(gains), paired)
        a, b = result_a.returns, result_b.returns
        low, high = bootstrap((-1.0, a), (1.0, b))
        return Comparison(float(b.mean() - a.mean()), low, high, _share_of_wins(a, b), len(a) + len(b), paired)


def _pairs(a: EvalResult, b: EvalResult) -> tuple[Floats, Floats]:
    """Returns of the episodes that both sides have played, side by side."""
    for name, result in (("result_a", a), ("result_b", b)):
        if result.seeding != "episode":
            raise ValueError(f"{name}.seeding is {result.seeding!r}: pairs need 'episode'; {_WAY_OUT}")
    common, rows_a, rows_b = np.intersect1d(a.seeds, b.seeds, return_indices=True)
    if len(common) < 2:
        text = f"result_a ({len(a.seeds)} episodes) and result_b ({len(b.seeds)}) have {len(common)} seeds in common"
        raise ValueError(f"{text}, pairs need 2 or more: evaluate both with the same seed, or {_WAY_OUT}")
    return a.returns[rows_a], b.returns[rows_b]


def _share_of_wins(a: Floats, b: Floats) -> float:
    """Share of all pairs with b > a, ties half; sorted search keeps it at N log N."""
    if np.isnan(a).any() or np.isnan(b).any():
        return math.nan
    ordered = np.sort(a)
    below, not_above = np.searchsorted(ordered, b, side="left"), np.searchsorted(ordered, b, side="right")
    return float((below + not_above).sum() / (2 * len(a) * len(b)))
