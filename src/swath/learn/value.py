"""The value function of a learner, blind to the scale of the rewards."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from swath.learn.networks import MLP

_SMALLEST_STD = 1e-4


class ValueNet(nn.Module):
    """A value function `[*B, D]` to `[*B]` whose network works in units of the returns' running mean and std.

    Where these change, the last layer is rescaled so that the values stay what they were (van Hasselt et al., "Learning
    values across many orders of magnitude", 2016).

    Args:
        network: with one output.
        memory: about how many updates the running figures look back.
    """

    mean: Tensor
    std: Tensor
    updates: Tensor

    def __init__(self, network: MLP, memory: int = 10) -> None:
        super().__init__()
        self.network, self.memory = network, memory
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))
        self.register_buffer("updates", torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Values `[*B]` in the reward's own units."""
        return torch.addcmul(self.mean, self.std, self.network(features).squeeze(-1))

    @torch.no_grad()
    def update(self, returns: Tensor) -> None:
        """Move the figures towards those of these returns, values unchanged."""
        self.updates += 1
        share = (1 / self.updates).clamp(min=1 / self.memory)
        delta = returns.mean() - self.mean
        old = torch.where(self.updates == 1, 0.0, self.std**2)
        variance = (1 - share) * (old + share * delta**2) + share * returns.var(correction=0)
        self._rescale(self.mean + share * delta, variance.sqrt().clamp(min=_SMALLEST_STD))

    def _rescale(self, mean: Tensor, std: Tensor) -> None:
        weight, bias = self.network.last_layer
        weight.mul_(self.std / std)
        bias.copy_((self.std * bias + self.mean - mean) / std)
        self.mean.copy_(mean)
        self.std.copy_(std)
