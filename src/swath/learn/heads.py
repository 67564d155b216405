"""Action heads: from a network's output to actions and log-probabilities, without a distribution object per step.

```
 network output [*B, head.inputs] ──▶ sample / mode ──▶ action [*B, *shape], log-probability [*B]
                                 └──▶ log_prob(action), entropy                 with gradients, for the learner
```

All heads have the same five members: `inputs`, `sample`, `mode`, `log_prob`, `entropy`; heads whose distribution
follows from the network's output alone also have `kl`.
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
_IMPOSSIBLE = -1e30  # a finite logit, so that 0 times it is 0 and not NaN, whose exponential is 0


class ActionHead(Protocol):
    """A distribution over actions, parametrised by a network's output."""

    inputs: int
    """Size of the network's output."""

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return a random action and its log-probability."""

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable action and its log-probability."""

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability `[*B]` of an action."""

    def entropy(self, out: Tensor) -> Tensor:
        """Return the entropy `[*B]` in nats."""


class Categorical(nn.Module):
    """A choice among `n` actions `start … start + n - 1`, int64 `[*B]`, from `n` logits."""

    def __init__(self, n: int, start: int = 0) -> None:
        super().__init__()
        self.inputs, self.counts, self.start = n, [n], start

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest of the logits with Gumbel noise, which is distributed as the softmax."""
        log_probs = out.log_softmax(-1)
        noise = torch.empty_like(log_probs).exponential_().log_()
        return self._gather(log_probs, noise.sub_(log_probs).argmin(-1, keepdim=True))

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the action of the largest logit."""
        log_probs = out.log_softmax(-1)
        return self._gather(log_probs, log_probs.argmax(-1, keepdim=True))

    def kl(self, out: Tensor, other: Tensor) -> Tensor:
        """Return the Kullback-Leibler divergence `[*B]` of the distribution of `out` from the other one."""
        log_probs = out.log_softmax(-1)
        return (log_probs.exp() * (log_probs - other.log_softmax(-1))).sum(-1)

    def _gather(self, log_probs: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        action = index.squeeze(-1)
        return action + self.start if self.start else action, log_probs.gather(-1, index).squeeze(-1)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability of actions `[*B]`."""
        index = (action.long() - self.start).unsqueeze(-1)
        return out.log_softmax(-1).gather(-1, index).squeeze(-1)

    def entropy(self, out: Tensor) -> Tensor:
        """Return the entropy, at most `log(n)`."""
        log_probs = out.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)


class MultiCategorical(nn.Module):
    """Several independent choices, the `k`-th among `counts[k]` actions: int64 `[*B, *shape]`.

    Their logits are concatenated: `counts[0]` of the first choice, then of the next.

    Args:
        counts: number of actions of each choice, flat.
        shape: shape of one action; `None` is `(K,)`.
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
        self.counts, self.choices, self.max_count, self.inputs = list(counts), len(counts), max(counts), sum(counts)
        sizes, column = torch.tensor(counts).unsqueeze(-1), torch.arange(self.max_count)
        place = torch.minimum(column, sizes - 1) + sizes.cumsum(0) - sizes
        self.register_buffer("place", place.flatten(), persistent=False)
        self.register_buffer("empty", torch.where(column >= sizes, _IMPOSSIBLE, 0.0), persistent=False)
        self.register_buffer("start", torch.tensor(start or [0] * self.choices), persistent=False)
        self._choice, self._even = Categorical(self.max_count), len(set(counts)) == 1

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return a random action for each choice, and the log-probability of all."""
        return self._join(*self._choice.sample(self._split(out)))

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable action of each choice, and the log-probability of all."""
        return self._join(*self._choice.mode(self._split(out)))

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Return the sum of the choices' log-probabilities."""
        flat = action.reshape(*out.shape[:-1], self.choices)
        return self._choice.log_prob(self._split(out), flat - self.start).sum(-1)

    def entropy(self, out: Tensor) -> Tensor:
        """Return the sum of the choices' entropies."""
        return self._choice.entropy(self._split(out)).sum(-1)

    def kl(self, out: Tensor, other: Tensor) -> Tensor:
        """Return the sum of the choices' divergences."""
        return self._choice.kl(self._split(out), self._split(other)).sum(-1)

    def _split(self, out: Tensor) -> Tensor:
        """Return logits `[*B, K, max_count]`, padded with impossible ones for smaller choices."""
        if self._even:
            return out.reshape(*out.shape[:-1], self.choices, self.max_count)
        return out[..., self.place].reshape(*out.shape[:-1], self.choices, self.max_count) + self.empty

    def _join(self, action: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        return (action + self.start).reshape(*action.shape[:-1], *self.shape), log_prob.sum(-1)


def mask_logits(out: Tensor, mask: Tensor, counts: Sequence[int]) -> Tensor:
    """Return logits in which forbidden actions have probability 0.

    Args:
        out: logits `[*B, Σ counts]`.
        mask: of the shape of `out`, any dtype; 0 forbids an action. A choice whose mask allows nothing is not masked.
        counts: number of actions of each choice.
    """
    parts = torch.split(mask != 0, list(counts), -1)
    return out.masked_fill(torch.cat([~part & part.any(-1, keepdim=True) for part in parts], -1), _IMPOSSIBLE)


def choice_head(space: Space[Any]) -> Categorical | MultiCategorical | None:
    """Return the head for a space of choices; `None` for another space."""
    match space:
        case spaces.Discrete():
            return Categorical(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            return MultiCategorical(space.nvec.flatten().tolist(), space.shape, space.start.flatten().tolist())
        case spaces.MultiBinary():
            return MultiCategorical([2] * math.prod(space.shape), space.shape)
    return None


class DiagGaussian(nn.Module):
    """Independent normal numbers `[*B, *shape]`; the network's output is their means, then their log-stds.

    Args:
        shape: shape of one action.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape, self.inputs = tuple(shape), 2 * math.prod(shape)

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return a random action and its log-density."""
        mean, log_std = self._moments(out)
        noise = torch.empty_like(mean).normal_()
        return self._unflatten(torch.addcmul(mean, log_std.exp(), noise)), self._density(noise, log_std)

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and its log-density."""
        mean, log_std = self._moments(out)
        return self._unflatten(mean), self._density(torch.zeros_like(mean), log_std)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Return the log-density of an action."""
        mean, log_std = self._moments(out)
        return self._density((action.reshape(mean.shape) - mean) * (-log_std).exp(), log_std)

    def entropy(self, out: Tensor) -> Tensor:
        """Return the differential entropy, without regard to bounds."""
        return (self._moments(out)[1] + (_HALF_LOG_TAU + 0.5)).sum(-1).expand(out.shape[:-1])

    def kl(self, out: Tensor, other: Tensor) -> Tensor:
        """Return the divergence of normal distributions, without regard to bounds."""
        (mean, log_std), (other_mean, other_log_std) = self._moments(out), self._moments(other)
        square = ((2 * log_std).exp() + (mean - other_mean).square()) * (-2 * other_log_std).exp()
        return (other_log_std - log_std + 0.5 * square - 0.5).sum(-1)

    def _moments(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log-stds, `[*B, D]`."""
        mean, log_std = out.chunk(2, -1)
        return mean, log_std

    def _unflatten(self, flat: Tensor) -> Tensor:
        return flat if len(self.shape) == 1 else flat.reshape(*flat.shape[:-1], *self.shape)

    def _density(self, z: Tensor, log_std: Tensor) -> Tensor:
        return (z * z).sum(-1).mul(-0.5) - (log_std + _HALF_LOG_TAU).sum(-1)


class Gaussian(DiagGaussian):
    """Independent normal actions, float32 `[*B, *shape]`, whose log-std does not depend on the observation.

    The network's output is the mean in units of `scale` around `centre`. Actions are clipped to finite bounds, and the
    log-probability is of the clipped action: a density inside, on a bound the logarithm of the whole probability beyond
    it. So every action is legal, and the gradient is exact and of less variance than the unclipped one (Fujita & Maeda,
    "Clipped Action Policy Gradient", 2018).

    Args:
        low: least action per dimension, an array of the action's shape, -inf for none.
        high: largest action, as `low`.
        log_std: initial log-std, in units of the half range.
    """

    low: Tensor
    high: Tensor
    scale: Tensor
    centre: Tensor

    def __init__(self, low: npt.ArrayLike, high: npt.ArrayLike, log_std: float = 0.0) -> None:
        super().__init__(np.shape(low))
        lowest, highest = (torch.as_tensor(np.ravel(limit), dtype=torch.float32) for limit in (low, high))
        boxed = (highest - lowest).isfinite() & (highest > lowest)
        scale = torch.where(boxed, (highest - lowest) / 2, 1.0)
        centre = torch.where(boxed, (highest + lowest) / 2, 0.0)
        self.inputs = lowest.numel()
        self._bounded = bool((lowest.isfinite() | highest.isfinite()).any())
        self._is_scaled = bool((scale != 1).any() or (centre != 0).any())
        self.log_std = nn.Parameter(log_std + scale.log())
        for name, constant in (("low", lowest), ("high", highest), ("scale", scale), ("centre", centre)):
            self.register_buffer(name, constant, persistent=False)

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return a random action, clipped to the bounds, and its log-probability."""
        if not self._bounded:
            return super().sample(out)
        mean, log_std = self._moments(out)
        std = log_std.exp()
        action = torch.addcmul(mean, std, torch.empty_like(mean).normal_()).clamp(self.low, self.high)
        return self._unflatten(action), self._clipped_log_prob(action, (action - mean) / std)

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean, clipped to the bounds, and its log-probability."""
        action = self._unflatten(self._moments(out)[0].clamp(self.low, self.high))
        return action, self.log_prob(out, action)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability: a density inside the bounds, a probability on them."""
        if not self._bounded:
            return super().log_prob(out, action)
        mean, log_std = self._moments(out)
        flat = action.reshape(mean.shape)
        return self._clipped_log_prob(flat, (flat - mean) / log_std.exp())

    def _moments(self, out: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addcmul(self.centre, self.scale, out) if self._is_scaled else out, self.log_std

    def _clipped_log_prob(self, action: Tensor, z: Tensor) -> Tensor:
        inside = (z * z).mul(-0.5) - (self.log_std + _HALF_LOG_TAU)
        side = (action <= self.low).to(z.dtype) - (action >= self.high).to(z.dtype)
        return torch.where(side == 0, inside, torch.special.log_ndtr(side * z)).sum(-1)
