"""Where one stretch of experience ends and the next begins, within the env rows of a batch.

    id     7 7 7 8 8 8 8 9
    done   . . 1 . . 1 . .
    ends   . . 1 . . 1 1 1

A *run* is a stretch of one id within a row, valid all over or nowhere. A *segment* ends where a run does, and at done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase

from swath.keys import DONE, MASK, NEXT, TRAJ_IDS
from swath.rollout.episodes.entries import Tensor, per_frame, per_frame_or_none


def run_ends(frames: Tensor, *labels: Tensor | None) -> Tensor:
    """The last frame of each stretch of a row in which no label changes.

    Args:
        frames: any tensor `[*B, T]`, for the shape and the device.
        labels: tensors `[*B, T]`; a missing one is None.

    Returns:
        `[*B, T]` bool.
    """
    ends = torch.zeros_like(frames, dtype=torch.bool)
    ends[..., -1:] = True
    for label in labels:
        if label is not None:
            ends[..., :-1] |= label[..., 1:] != label[..., :-1]
    return ends


def segment_ends(td: TensorDictBase, done: Tensor | None = None) -> Tensor:
    """The frames behind which nothing in this batch goes on, `[*B, T]` bool.

    They are the last frame of each row, those where `done` is set, those with another trajectory id behind them (if
    the batch has ids), and those beside masked frames; a masked frame stands alone.

    Args:
        td: a batch `[*B, T]`.
        done: `[*B, T]`, or `[*B, …, T]` if the batch has neither ids nor mask; by default `("next", "done")`.

    Raises:
        RuntimeError: done, ids or mask with more than one value per frame.
    """
    done = per_frame(td, (NEXT, DONE)) if done is None else done
    mask = per_frame_or_none(td, MASK)
    ends = done | run_ends(done, per_frame_or_none(td, TRAJ_IDS), mask)
    return ends if mask is None else ends | ~mask


def ids_from_done(done: Tensor, mask: Tensor | None = None) -> Tensor:
    """Trajectory ids 0, 1, … `[*B, T]` that change behind each `done` and with each row; -1 where the mask is False."""
    starts = torch.ones_like(done)
    starts[..., 1:] = done[..., :-1]
    ids = starts.reshape(-1).cumsum(0).reshape(done.shape) - 1
    return ids if mask is None else ids.masked_fill(~mask, -1)


def mask_of(lengths: Tensor) -> Tensor:
    """The mask `[n, T_max]` of rows of these lengths `[n]`."""
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(-1)


@dataclass(frozen=True)
class Runs:
    """The trajectories of a batch `[*B, T]`, as runs in the order of its flattened frames.

    Attributes:
        lengths: frames of each run, `[n]`.
        frames: flat numbers of the frames that belong to one, `[ΣT_i]`; None if all do.
        are_rows: whether every env row is one run.
    """

    lengths: Tensor
    frames: Tensor | None
    are_rows: bool

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor | None) -> Runs:
        """The runs of one id `[*B, T]` within the rows, without the masked frames."""
        ends = run_ends(ids, ids, mask).reshape(-1).nonzero().squeeze(-1)
        lengths = ends.diff(prepend=ends.new_full((1,), -1))
        are_rows = ends.numel() * ids.shape[-1] == ids.numel()
        if mask is None or bool(mask.all()):
            return cls(lengths, None, are_rows)
        valid = mask.reshape(-1)
        return cls(lengths[valid[ends]], valid.nonzero().squeeze(-1), are_rows=False)

    def places(self) -> Tensor:
        """Where each frame goes in the flattened `[n, T_max]`, `[ΣT_i]`."""
        return mask_of(self.lengths).reshape(-1).nonzero().squeeze(-1)

    def pick(self, entry: Tensor) -> Tensor:
        """The frames of a flattened entry `[*B·T, …]` that belong to a run, `[ΣT_i, …]`."""
        return entry if self.frames is None else entry.index_select(0, self.frames)

    def pick_values(self, values: list[Any]) -> list[Any]:
        """As `pick`, of a non-tensor entry."""
        return values if self.frames is None else [values[frame] for frame in self.frames.tolist()]
