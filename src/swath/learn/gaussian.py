"""The head for continuous actions: a normal distribution, cut at the bounds of the action space.

```
 network output ──scale, shift──▶ mean ──+ std · noise──▶ raw action ──cut at the bounds──▶ action
```
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Gaussian(nn.Module):
    """Independent normal actions, float32 `[*B, *shape]`, whose log-std does not depend on the observation.

    The network's output is the mean in units of `scale` around `centre`. Where a bound is finite, actions beyond it
    become the bound itself, and the log-probability is that of what comes out: a density inside, on a bound the
    logarithm of all the probability beyond it. So every action is legal, and the gradient is exact and of less
    variance than the unclipped one (Fujita & Maeda, "Clipped Action Policy Gradient", 2018).

    Args:
        low: least action per dimension, an array of the action's shape, -inf for none.
        high: largest action, as `low`.
        log_std: what the log-std, in units of the half range, begins with.
    """

    low: Tensor
    high: Tensor
    scale: Tensor
    centre: Tensor

    def __init__(self, low: npt.ArrayLike, high: npt.ArrayLike, log_std: float = 0.0) -> None:
        super().__init__()
        lowest, highest = (torch.as_tensor(np.asarray(bound), dtype=torch.float32) for bound in (low, high))
        self.shape = tuple(lowest.shape)
        lowest, highest = lowest.flatten(), highest.flatten()
        boxed = (highest - lowest).isfinite()
        self.inputs = lowest.numel()
        self.bounded = bool((lowest.isfinite() | highest.isfinite()).any())
        scale = torch.where(boxed, (highest - lowest) / 2, 1.0)
        self.log_std = nn.Parameter(log_std + scale.log())
        self.register_buffer("low", lowest, persistent=False)
        self.register_buffer("high", highest, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("centre", torch.where(boxed, (highest + lowest) / 2, 0.0), persistent=False)

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """A normal action, put back on the bounds if it lies beyond."""
        mean, std = self._moments(out)
        return self._legal(torch.addcmul(mean, std, torch.empty_like(mean).normal_()), mean, std)

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The mean, put back on the bounds if it lies beyond."""
        mean, std = self._moments(out)
        return self._legal(mean, mean, std)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probability: a density inside the bounds, a probability on them."""
        flat = action.reshape(out.shape) if action.shape != out.shape else action
        return self._log_prob(flat, *self._moments(out))

    def entropy(self, out: Tensor) -> Tensor:
        """Differential entropy of the normal distribution, bounds left aside."""
        return (self.log_std + (_HALF_LOG_TAU + 0.5)).sum().expand(out.shape[:-1])

    def _moments(self, out: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addcmul(self.centre, self.scale, out), self.log_std.exp()

    def _legal(self, action: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        if self.bounded:
            action = action.clamp(self.low, self.high)
        log_prob = self._log_prob(action, mean, std)
        return action if len(self.shape) == 1 else action.reshape(*action.shape[:-1], *self.shape), log_prob

    def _log_prob(self, action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        z = (action - mean) / std
        inside = -0.5 * z * z - (self.log_std + _HALF_LOG_TAU)
        if not self.bounded:
            return inside.sum(-1)
        beyond = (action <= self.low).to(z.dtype) - (action >= self.high).to(z.dtype)
        return torch.where(beyond == 0, inside, torch.special.log_ndtr(beyond * z)).sum(-1)
