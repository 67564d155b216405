"""Observations of any served space as one vector of features.

```
 entries [*B, …], one per leaf of the space ──flatten, one-hot──▶ [*B, D] ──running mean and std──▶ features [*B, D]
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import one_hot

from swath.learn.normalisation import Change, Standardise
from swath.rollout.spaces import Leaf


class Encoder(nn.Module):
    """From the entries that a policy reads, `[*B, …]` each, to features `[*B, features]`."""

    features: int

    def update(self, entries: Sequence[Tensor]) -> Change | None:
        """Take observations `[N, …]` into running figures.

        Returns:
            How to read the features from now on; `None` where nothing changed, or all began.
        """


class VectorEncoder(Encoder):
    """Flattened entries side by side: numbers as they are, bytes over 255, choices one-hot.

    Args:
        leaves: the entries, in the order in which `forward` gets them.
        standardise: whether running means and standard deviations are applied, which only `update` moves.
    """

    standardise: Standardise | None

    def __init__(self, leaves: Sequence[Leaf], *, standardise: bool) -> None:
        super().__init__()
        self.features = sum(spaces.flatdim(leaf.space) for leaf in leaves)
        self.standardise = Standardise(self.features) if standardise else None
        self._flattens = [_flattening(leaf) for leaf in leaves]
        self._is_flat = len(leaves) == 1 and len(leaves[0].shape) == 1 and leaves[0].dtype == np.float32

    def forward(self, *entries: Tensor) -> Tensor:
        """The features `[*B, features]`."""
        flat = entries[0] if self._is_flat else self._flat(entries)
        standardise = self.standardise
        return flat if standardise is None else standardise.forward(flat)

    def update(self, entries: Sequence[Tensor]) -> Change | None:
        """Take observations `[N, …]` into the running figures."""
        return None if self.standardise is None else self.standardise.update(self._flat(entries))

    def _flat(self, entries: Sequence[Tensor]) -> Tensor:
        return torch.cat([flatten(entry) for flatten, entry in zip(self._flattens, entries, strict=True)], -1)


def _flattening(leaf: Leaf) -> Callable[[Tensor], Tensor]:
    """What makes `[*B, width]` floats of the leaf's `[*B, *shape]`."""
    match leaf.space:
        case spaces.Discrete():
            return partial(_one_hot, start=int(leaf.space.start), n=int(leaf.space.n))
        case spaces.MultiDiscrete():
            return partial(_one_hots, space=leaf.space)
    return partial(_numbers, dims=len(leaf.shape), factor=1 / 255 if leaf.dtype == np.uint8 else 1.0)


def _one_hot(x: Tensor, start: int, n: int) -> Tensor:
    return one_hot(x.long() - start, n).to(torch.float32)


def _one_hots(x: Tensor, space: spaces.MultiDiscrete) -> Tensor:
    choices = x.reshape(*x.shape[: x.ndim - len(space.shape)], -1).unbind(-1)
    parts = zip(choices, space.start.flat, space.nvec.flat, strict=True)
    return torch.cat([_one_hot(choice, int(start), int(n)) for choice, start, n in parts], -1)


def _numbers(x: Tensor, dims: int, factor: float) -> Tensor:
    return x.reshape(*x.shape[: x.ndim - dims], -1).to(torch.float32) * factor
