"""The heads for continuous actions: normal distributions, free or cut at the bounds of the action space.

```
 network output ──scale, shift──▶ mean ──+ std · noise──▶ raw action ──cut at the bounds──▶ action
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class DiagGaussian(nn.Module):
    """Independent normal numbers `[*B, *shape]`, from their means and then their log-stds.

    Args:
        shape: of one action.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape, self.inputs = tuple(shape), 2 * math.prod(shape)

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """A normal action."""
        mean, log_std = self._moments(out)
        noise = torch.empty_like(mean).normal_()
        return self._shaped(torch.addcmul(mean, log_std.exp(), noise)), self._density(noise, log_std)

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The mean."""
        mean, log_std = self._moments(out)
        return self._shaped(mean), self._density(torch.zeros_like(mean), log_std)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-density."""
        mean, log_std = self._moments(out)
        return self._density((action.reshape(mean.shape) - mean) * (-log_std).exp(), log_std)

    def entropy(self, out: Tensor) -> Tensor:
        """Differential entropy, bounds left aside."""
        return (self._moments(out)[1] + (_HALF_LOG_TAU + 0.5)).sum(-1).expand(out.shape[:-1])

    def kl(self, out: Tensor, other: Tensor) -> Tensor:
        """Divergence of normal distributions, bounds left aside."""
        (mean, log_std), (its_mean, its_log_std) = self._moments(out), self._moments(other)
        square = ((2 * log_std).exp() + (mean - its_mean).square()) * (-2 * its_log_std).exp()
        return (its_log_std - log_std + 0.5 * square - 0.5).sum(-1)

    def _moments(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[*B, D]` and log-stds."""
        mean, log_std = out.chunk(2, -1)
        return mean, log_std

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat if len(self.shape) == 1 else flat.reshape(*flat.shape[:-1], *self.shape)

    def _density(self, z: Tensor, log_std: Tensor) -> Tensor:
        return (z * z).sum(-1).mul(-0.5) - (log_std + _HALF_LOG_TAU).sum(-1)


class Gaussian(DiagGaussian):
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
        super().__init__(np.shape(low))
        lowest, highest = (torch.as_tensor(np.ravel(bound), dtype=torch.float32) for bound in (low, high))
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
        if not self._bounded:
            return super().sample(out)
        mean, log_std = self._moments(out)
        std = log_std.exp()
        action = torch.addcmul(mean, std, torch.empty_like(mean).normal_()).clamp(self.low, self.high)
        return self._shaped(action), self._cut_log_prob(action, (action - mean) / std)

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The mean, put back on the bounds if it lies beyond."""
        action = self._shaped(self._moments(out)[0].clamp(self.low, self.high))
        return action, self.log_prob(out, action)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probability: a density inside the bounds, a probability on them."""
        if not self._bounded:
            return super().log_prob(out, action)
        mean, log_std = self._moments(out)
        flat = action.reshape(mean.shape)
        return self._cut_log_prob(flat, (flat - mean) / log_std.exp())

    def _moments(self, out: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addcmul(self.centre, self.scale, out) if self._moved else out, self.log_std

    def _cut_log_prob(self, action: Tensor, z: Tensor) -> Tensor:
        inside = (z * z).mul(-0.5) - (self.log_std + _HALF_LOG_TAU)
        side = (action <= self.low).to(z.dtype) - (action >= self.high).to(z.dtype)
        return torch.where(side == 0, inside, torch.special.log_ndtr(side * z)).sum(-1)
