"""Where one stretch of experience ends and the next begins, within the env rows of a batch.

    id    7 7 7 8 8 8 8 9 │          a *run* is a stretch of one id, all of it valid or none, within a row
    done  . . 1 . . 1 . . │          a *segment* ends where a run does, and where `done` is set
    ends  . . 1 . . 1 1 1 │          the last frame of a row always ends one
"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from swath.keys import DONE, MASK, NEXT, TRAJ_IDS
from swath.rollout.entries import Tensor, per_frame, per_frame_or_none


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


def segment_ends(td: TensorDictBase) -> Tensor:
    """The frames behind which nothing in this batch goes on, `[*B, T]` bool.

    They are the last frame of each row, those where `("next", "done")` is set, those with another trajectory id behind
    them (if the batch has ids), and next to masked frames; a masked frame stands alone.

    Raises:
        RuntimeError: done, ids or mask with more than one value per frame.
    """
    done, mask = per_frame(td, (NEXT, DONE)), per_frame_or_none(td, MASK)
    ends = done | run_ends(done, per_frame_or_none(td, TRAJ_IDS), mask)
    return ends if mask is None else ends | ~mask
