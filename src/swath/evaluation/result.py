"""What one evaluation hands out: a dict of numbers, with the episodes behind them as attributes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from tensordict import TensorDict

from swath.evaluation.request import Stopped
from swath.evaluation.statistics import Floats, Ints
from swath.rollout.hosts.base import Seeding

Bools: TypeAlias = NDArray[np.bool_]

_MARK = "swath_eval_result"
_FORMAT = 1
_FILM = "video"
_PROVENANCE = ("step", "seeding", "stopped", "retries")
_FILMS = ("video_paths", "video_lengths", "video_truncated")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

NO_SEED = -1
"""The seed of an episode that had none of its own."""

EPISODE_DTYPES: dict[str, type[np.generic]] = {
    "returns": np.float64,
    "lengths": np.int64,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "seeds": np.int64,
}


class EpisodeRow(NamedTuple):
    """A complete episode, in the order of the columns above."""

    returned: float
    length: int
    terminated: bool
    truncated: bool
    seed: int = NO_SEED


@dataclass(frozen=True, eq=False)
class Episodes:
    """The N episodes of an evaluation, in episode order.

    Attributes:
        returns: float64 [N].
        lengths: int64 [N], env steps.
        terminated: bool [N].
        truncated: bool [N], cuts by `max_steps` included.
        seeds: int64 [N], -1 where an episode had none of its own.
    """

    returns: Floats
    lengths: Ints
    terminated: Bools
    truncated: Bools
    seeds: Ints

    @classmethod
    def of(cls, columns: Mapping[str, ArrayLike]) -> Self:
        """Episodes from array-likes by name, copied into the dtypes above."""
        return cls(**{name: np.array(columns[name], dtype=kind) for name, kind in EPISODE_DTYPES.items()})

    @classmethod
    def by_number(cls, rows: Mapping[int, EpisodeRow]) -> Self:
        """Episodes by their number, brought into order."""
        columns = zip(*(rows[episode] for episode in sorted(rows)), strict=True)
        return cls.of(dict(zip(EPISODE_DTYPES, columns, strict=True)) if rows else dict.fromkeys(EPISODE_DTYPES, ()))


class EvalResult(dict[str, Any]):
    """The numbers of one evaluation by name, e.g. `"eval/reward"`, owned by the caller; its episodes are attributes.

    Args:
        metrics: the numbers, under their names with prefix.
        episodes: the episodes behind them.
        films: what was filmed: the attributes that begin with `video_`.

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

    def __init__(
        self,
        metrics: Mapping[str, Any],
        episodes: Episodes,
        *,
        step: int = 0,
        seeding: Seeding = "episode",
        stopped: Stopped = "fixed",
        retries: int = 0,
        films: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(metrics)
        self.returns, self.lengths, self.seeds = episodes.returns, episodes.lengths, episodes.seeds
        self.terminated, self.truncated = episodes.terminated, episodes.truncated
        self.step, self.seeding, self.stopped, self.retries = step, seeding, stopped, retries
        filmed = films or {}
        self.video_paths: tuple[str, ...] = tuple(filmed.get("video_paths", ()))
        self.video_lengths: tuple[int, ...] = tuple(filmed.get("video_lengths", ()))
        self.video_truncated: bool = filmed.get("video_truncated", False)

    def to_tensordict(self) -> TensorDict:
        """A flat TensorDict of batch size [] with the same keys: float64 and int64 scalars, tensors on the CPU."""
        return TensorDict({name: _as_tensor(value) for name, value in self.items()}, batch_size=[])

    def to_json(self) -> str:
        """The whole result but its films as strict JSON; numbers that are not finite are written as strings."""
        parts = {
            "metrics": {name: _pack(value) for name, value in self.items() if not _is_film(name, value)},
            "episodes": {name: _pack(getattr(self, name).tolist()) for name in EPISODE_DTYPES},
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
        return cls(
            {name: _unpack(value) for name, value in parts["metrics"].items()},
            Episodes.of({name: _unpack(column) for name, column in parts["episodes"].items()}),
            **parts["provenance"],
            films=parts["films"],
        )


def _is_film(name: str, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and name.rpartition("/")[2] == _FILM


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _pack(value: Any) -> Any:
    """A bool, int, float, tensor, or list of numbers, as what `json.dumps(…, allow_nan=False)` takes."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return {"dtype": kind, "shape": list(value.shape), "values": _pack(value.flatten().tolist())}
    if isinstance(value, list):
        return [_pack(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def _unpack(value: Any) -> Any:
    """The value that `_pack` wrote."""
    if isinstance(value, dict):
        values = torch.tensor(_unpack(value["values"]), dtype=getattr(torch, value["dtype"]))
        return values.reshape(value["shape"])
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    return _NOT_FINITE[value] if isinstance(value, str) else value
