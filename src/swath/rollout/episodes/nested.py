"""Rows of different lengths as nested tensors, in either of torch's two layouts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from swath.rollout.episodes.entries import Tensor

_PROTOTYPE = "The PyTorch API of nested tensors is in prototype stage"


def nest_by(lengths: Tensor, layout: torch.layout) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """How to nest entries by runs of these lengths `[n]`.

    Returns:
        The batch size, `[n, -1]` (`[n, T]` for equal lengths) or with torch's own symbol for the ragged dimension, and
        a function that makes `[n, -1, …]` of `[ΣT_i, …]`: a copy if strided, a view if jagged.

    Raises:
        ValueError: a layout that nested tensors do not have.
    """
    if layout is torch.strided:
        cuts = lengths.tolist()
        length = cuts[0] if len(set(cuts)) == 1 else -1  # torch calls equal lengths by their number
        return torch.Size((len(cuts), length)), lambda frames: _strided(list(frames.split(cuts)))
    if layout is torch.jagged:
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        batch_size = _jagged(lengths.new_zeros(int(offsets[-1])), offsets).shape
        return batch_size, lambda frames: _jagged(frames, offsets)
    raise ValueError(f"as_nested={layout!r} is no layout of nested tensors; use True, torch.strided or torch.jagged")


def _strided(rows: list[Tensor]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _PROTOTYPE, UserWarning)
        return torch.nested.as_nested_tensor(rows, layout=torch.strided)


def _jagged(frames: Tensor, offsets: Tensor) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(frames, offsets)
