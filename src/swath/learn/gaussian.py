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
        boxed = (highest - lowest).isfinite() & (highest > lowest)
        scale = torch.where(boxed, (highest - lowest) / 2, 1.0)
        centre = torch.where(boxed, (highest + lowest) / 2, 0.0)
        self.inputs = lowest.numel()
        self._bounded = bool((lowest.isfinite() | highest.isfinite()).any())
        self._moved = bool((scale != 1).any() or (centre != 0).any())
        self.log_std = nn.Parameter(log_std + scale.log())
        for name, constant in (("low", lowest), ("high", highest), ("scale", scale), ("centre", centre)):
            self.register_buffer(name, constant, persistent=False)

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """A normal action, put back on the bounds if it lies beyond."""
        mean, std = self._moments(out)
        noise = torch.empty_like(mean).normal_()
        action = torch.addcmul(mean, std, noise)
        if self._bounded:
            action = action.clamp(self.low, self.high)
            return self._shaped(action), self._cut_log_prob(action, (action - mean) / std)
        return self._shaped(action), self._free_log_prob(noise)

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The mean, put back on the bounds if it lies beyond."""
        mean, _ = self._moments(out)
        action = self._shaped(mean.clamp(self.low, self.high))
        return action, self.log_prob(out, action)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probability: a density inside the bounds, a probability on them."""
        mean, std = self._moments(out)
        flat = action.reshape(mean.shape)
        z = (flat - mean) / std
        return self._cut_log_prob(flat, z) if self._bounded else self._free_log_prob(z)

    def entropy(self, out: Tensor) -> Tensor:
        """Differential entropy of the normal distribution, bounds left aside."""
        return (self.log_std + (_HALF_LOG_TAU + 0.5)).sum().expand(out.shape[:-1])

    def _moments(self, out: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addcmul(self.centre, self.scale, out) if self._moved else out, self.log_std.exp()

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat if len(self.shape) == 1 else flat.reshape(*flat.shape[:-1], *self.shape)

    def _free_log_prob(self, z: Tensor) -> Tensor:
        return (z * z).sum(-1).mul(-0.5) - (self.log_std + _HALF_LOG_TAU).sum()

    def _cut_log_prob(self, action: Tensor, z: Tensor) -> Tensor:
        inside = (z * z).mul(-0.5) - (self.log_std + _HALF_LOG_TAU)
        side = (action <= self.low).to(z.dtype) - (action >= self.high).to(z.dtype)
        return torch.where(side == 0, inside, torch.special.log_ndtr(side * z)).sum(-1)
