"""What one evaluation hands out: a dict of numbers, with the episodes behind them as attributes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from swath.evaluate.record import EPISODE_DTYPES, Episodes, Films, Provenance
from swath.evaluate.strict_json import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARK = "swath_eval_result"
_FORMAT = 1
_FILM = "video"


class EvalResult(dict[str, Any]):
    """The numbers of one evaluation by name, e.g. `"eval/reward"`, owned by the caller; its episodes are attributes.

    Args:
        metrics: the numbers, under their names with prefix.
        episodes: the episodes behind them.
        provenance: how the result came about.
        films: what was filmed.

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
        provenance: Provenance | None = None,
        films: Films | None = None,
    ) -> None:
        super().__init__(metrics)
        about, filmed = provenance or Provenance(), films or Films()
        self.returns = episodes.returns
        self.lengths = episodes.lengths
        self.terminated = episodes.terminated
        self.truncated = episodes.truncated
        self.seeds = episodes.seeds
        self.step = about.step
        self.seeding = about.seeding
        self.stopped = about.stopped
        self.retries = about.retries
        self.video_paths = filmed.video_paths
        self.video_lengths = filmed.video_lengths
        self.video_truncated = filmed.video_truncated

    def to_tensordict(self) -> TensorDict:
        """A flat TensorDict of batch size [] with the same keys: float64 and int64 scalars, tensors on the CPU."""
        return TensorDict({name: _as_tensor(value) for name, value in self.items()}, batch_size=[])

    def to_json(self) -> str:
        """The whole result but its films as strict JSON; numbers that are not finite are written as strings."""
        columns = {name: pack(getattr(self, name).tolist()) for name in EPISODE_DTYPES}
        parts = {
            "metrics": {name: pack(value) for name, value in self.items() if not _is_film(name, value)},
            "episodes": columns,
            "provenance": {
                "step": self.step,
                "seeding": self.seeding,
                "stopped": self.stopped,
                "retries": self.retries,
            },
            "films": {
                "video_paths": list(self.video_paths),
                "video_lengths": list(self.video_lengths),
                "video_truncated": self.video_truncated,
            },
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
            raise ValueError(
                f"this is not the JSON of an EvalResult (format {_FORMAT}); EvalResult.to_json() writes it"
            )
        films = parts["films"]
        return cls(
            {name: unpack(value) for name, value in parts["metrics"].items()},
            Episodes.of({name: unpack(column) for name, column in parts["episodes"].items()}),
            Provenance(**parts["provenance"]),
            Films(tuple(films["video_paths"]), tuple(films["video_lengths"]), films["video_truncated"]),
        )


def _is_film(name: str, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and name.rpartition("/")[2] == _FILM


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
