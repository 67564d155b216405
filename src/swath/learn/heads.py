"""From what a network says to an action and its log-probability, without a distribution object per step.

```
 network output [*B, head.inputs] ──▶ sample / mode ──▶ action [*B, *shape], log-probability [*B]
                                 └──▶ log_prob(action), entropy                 with gradients, for the learner
```

All heads have the same five members: `inputs`, `sample`, `mode`, `log_prob`, `entropy`; those whose whole distribution
is in the network's output also have `kl`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_IMPOSSIBLE = -1e30  # a logit whose exponential is 0, yet 0 times it is 0 and not NaN


class ActionHead(Protocol):
    """How a network's output is read as a distribution over actions."""

    inputs: int
    """How many numbers the network must give."""

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """A random action and its log-probability."""

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable action and its log-probability."""

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probability `[*B]` of an action."""

    def entropy(self, out: Tensor) -> Tensor:
        """Entropy `[*B]` in nats."""


class Categorical(nn.Module):
    """A choice among `n` actions `start … start + n - 1`, int64 `[*B]`, from `n` logits."""

    def __init__(self, n: int, start: int = 0) -> None:
        super().__init__()
        self.inputs, self.start = n, start

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The largest of logits with Gumbel noise, which is distributed as the softmax."""
        log_probs = out.log_softmax(-1)
        noise = torch.empty_like(log_probs).exponential_().log_()
        return self._chosen(log_probs, noise.sub_(log_probs).argmin(-1, keepdim=True))

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The largest logit's action."""
        log_probs = out.log_softmax(-1)
        return self._chosen(log_probs, log_probs.argmax(-1, keepdim=True))

    def masked(self, out: Tensor, mask: Tensor) -> Tensor:
        """Make the logits of forbidden actions impossible, those with a 0 in `mask` `[*B, n]`; see `masked`."""
        return masked(out, mask, [self.inputs])

    def kl(self, out: Tensor, other: Tensor) -> Tensor:
        """Kullback-Leibler divergence `[*B]` of what `other` says from what `out` says."""
        log_probs = out.log_softmax(-1)
        return (log_probs.exp() * (log_probs - other.log_softmax(-1))).sum(-1)

    def _chosen(self, log_probs: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        action = index.squeeze(-1)
        return action + self.start if self.start else action, log_probs.gather(-1, index).squeeze(-1)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probability of actions `[*B]`."""
        index = (action.long() - self.start).unsqueeze(-1)
        return out.log_softmax(-1).gather(-1, index).squeeze(-1)

    def entropy(self, out: Tensor) -> Tensor:
        """Entropy, at most `log(n)`."""
        log_probs = out.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)


class MultiCategorical(nn.Module):
    """Several independent choices, the `k`-th among `counts[k]` actions: int64 `[*B, *shape]`.

    Their logits stand side by side: `counts[0]` of the first, then of the next.

    Args:
        counts: how many actions each choice has, flat.
        shape: of one action; `None` is `(K,)`.
        start: the first action of each choice, flat; `None` is 0.
    """

    place: Tensor
    empty: Tensor
    start: Tensor

    def __init__(
        self, counts: Sequence[int], shape: Sequence[int] | None = None, start: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.shape = tuple(shape) if shape is not None else (len(counts),)
        self.counts, self.choices, self.most, self.inputs = list(counts), len(counts), max(counts), sum(counts)
        sizes, column = torch.tensor(counts).unsqueeze(-1), torch.arange(self.most)
        place = torch.minimum(column, sizes - 1) + sizes.cumsum(0) - sizes
        self.register_buffer("place", place.flatten(), persistent=False)
        self.register_buffer("empty", torch.where(column >= sizes, _IMPOSSIBLE, 0.0), persistent=False)
        self.register_buffer("start", torch.tensor(start or [0] * self.choices), persistent=False)
        self._each, self._even = Categorical(self.most), len(set(counts)) == 1

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """A random action for each choice."""
        return self._joined(*self._each.sample(self._split(out)))

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable action of each choice."""
        return self._joined(*self._each.mode(self._split(out)))

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Sum of the choices' log-probabilities."""
        flat = action.reshape(*out.shape[:-1], self.choices)
        return self._each.log_prob(self._split(out), flat - self.start).sum(-1)

    def entropy(self, out: Tensor) -> Tensor:
        """Sum of the choices' entropies."""
        return self._each.entropy(self._split(out)).sum(-1)

    def masked(self, out: Tensor, mask: Tensor) -> Tensor:
        """Make the logits of forbidden actions impossible; masks of the choices stand side by side, as the logits."""
        return masked(out, mask, self.counts)

    def kl(self, out: Tensor, other: Tensor) -> Tensor:
        """Sum of the choices' divergences."""
        return self._each.kl(self._split(out), self._split(other)).sum(-1)

    def _split(self, out: Tensor) -> Tensor:
        """Logits `[*B, K, most]`; those that a smaller choice has not are impossible."""
        if self._even:
            return out.reshape(*out.shape[:-1], self.choices, self.most)
        return out[..., self.place].reshape(*out.shape[:-1], self.choices, self.most) + self.empty

    def _joined(self, action: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        return (action + self.start).reshape(*action.shape[:-1], *self.shape), log_prob.sum(-1)


def masked(out: Tensor, mask: Tensor, counts: Sequence[int]) -> Tensor:
    """Give forbidden actions probability 0: their logits become so low that nothing else changes.

    Args:
        out: logits `[*B, Σ counts]`.
        mask: as `out`, of any dtype; 0 forbids an action. A choice whose mask allows nothing keeps its logits.
        counts: how many actions each choice has.
    """
    parts = torch.split(mask != 0, list(counts), -1)
    return out.masked_fill(torch.cat([~part & part.any(-1, keepdim=True) for part in parts], -1), _IMPOSSIBLE)


def choices_of(space: Space[Any]) -> Categorical | MultiCategorical | None:
    """The head for a space of choices; None for another space."""
    match space:
        case spaces.Discrete():
            return Categorical(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            return MultiCategorical(space.nvec.flatten().tolist(), space.shape, space.start.flatten().tolist())
        case spaces.MultiBinary():
            return MultiCategorical([2] * math.prod(space.shape), space.shape)
    return None


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
