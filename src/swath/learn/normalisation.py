"""Running mean and standard deviation of the features, kept as buffers so that they travel with the weights.

`forward` only applies them: a learner calls `update` with what it trained on, so evaluation cannot move them.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

_SMALLEST_VARIANCE = 1e-8
_LIMIT = 10.0
_MOST_ALIKE = 4.0  # a feature that was all but constant says nothing about how to read it from now on

Change: TypeAlias = tuple[Tensor, Tensor]
"""Factor and offset `[D]`: the features of before are `factor * features + offset`."""


class Standardise(nn.Module):
    """`(x - mean) / std` of features `[*B, D]`, cut at ±10; the identity before the first `update`."""

    mean: Tensor
    variance: Tensor
    count: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("variance", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale", torch.ones(features))
        self.register_buffer("shift", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """The standardised features `[*B, D]`."""
        buffers = cast("dict[str, Tensor]", self._buffers)
        return torch.addcmul(buffers["shift"], x, buffers["scale"]).clamp_(-_LIMIT, _LIMIT)

    @torch.no_grad()
    def update(self, x: Tensor) -> Change | None:
        """Take rows `[N, D]` into account, all rows ever seen weighing the same.

        The formula for joining two sets is that of Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm
        for computing sample variances", 1979.

        Returns:
            What turns the features as they are from now on into those of before, for the networks that read them;
            `None` after the first update.
        """
        first, scale, shift = not self.count, self.scale.clone(), self.shift.clone()
        variance, mean = torch.var_mean(x.to(self.mean.dtype), 0, correction=0)
        share = len(x) / (self.count + len(x))
        delta = mean - self.mean
        self.variance += share * (variance - self.variance + delta * delta * (1 - share))
        self.mean += share * delta
        self.count += len(x)
        self.scale.copy_(self.variance.clamp(min=_SMALLEST_VARIANCE).rsqrt())
        self.shift.copy_(-self.mean * self.variance.clamp(min=_SMALLEST_VARIANCE).rsqrt())
        return None if first else self._change_from(scale, shift)

    def _change_from(self, scale: Tensor, shift: Tensor) -> Change:
        factor = scale / self.scale
        alike = (factor < _MOST_ALIKE) & (factor > 1 / _MOST_ALIKE)
        return torch.where(alike, factor, 1.0), torch.where(alike, shift - self.shift * factor, 0.0)
