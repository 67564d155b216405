"""How a network's output becomes actions, chosen by the action space.

```
Discrete                     logits [n]        ──▶ start … start + n - 1
MultiDiscrete, MultiBinary   logits [Σ n_k]    ──▶ one choice each
Box of integers              logits [Σ n_k]    ──▶ counts from the lower bound, where workers add it; else values
Box of floats                mean, log-std     ──▶ a normal number each, not bounded: workers rescale and clip
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from swath.learn.heads import Categorical, MultiCategorical

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class ActionHead(Protocol):
    """A head of `swath.learn.heads` that has a divergence too."""

    inputs: int
    """How many numbers the network must give."""

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """A random action and its log-probability."""
        ...

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable action and its log-probability."""
        ...

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-probability `[*B]` of an action."""
        ...

    def entropy(self, out: Tensor) -> Tensor:
        """Entropy `[*B]` in nats."""
        ...

    def kl(self, out: Tensor, other: Tensor) -> Tensor:
        """Kullback-Leibler divergence `[*B]` of what `other` says from what `out` says."""
        ...


class Choices(MultiCategorical):
    """Several independent choices, whose logits stand side by side: `counts[0]` of the first, then of the next.

    Args:
        counts: how many actions each choice has, flat.
        shape: of one action; None is `(K,)`.
        start: the first action of each choice, flat; None is 0.
    """

    place: Tensor

    def __init__(
        self, counts: Sequence[int], shape: Sequence[int] | None = None, start: Sequence[int] | None = None
    ) -> None:
        super().__init__(counts, shape, start)
        self.inputs, self._even = sum(counts), len(set(counts)) == 1
        begins = np.cumsum([0, *counts[:-1]])
        place = np.minimum(np.arange(self.most), np.asarray(counts)[:, None] - 1) + begins[:, None]
        self.register_buffer("place", torch.from_numpy(place.reshape(-1)), persistent=False)

    def _split(self, out: Tensor) -> Tensor:
        return super()._split(out if self._even else out[..., self.place])


class DiagGaussian(nn.Module):
    """Independent normal numbers `[*B, *shape]`, from their means and then their log-stds.

    Args:
        shape: of one action.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape, self.numbers = tuple(shape), math.prod(shape)
        self.inputs = 2 * self.numbers

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """A normal action."""
        mean, log_std = out.chunk(2, -1)
        noise = torch.empty_like(mean).normal_()
        return self._shaped(torch.addcmul(mean, log_std.exp(), noise)), self._density(noise, log_std)

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The mean."""
        mean, log_std = out.chunk(2, -1)
        return self._shaped(mean), self._density(torch.zeros_like(mean), log_std)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-density."""
        mean, log_std = out.chunk(2, -1)
        return self._density((action.reshape(mean.shape) - mean) * (-log_std).exp(), log_std)

    def entropy(self, out: Tensor) -> Tensor:
        """Differential entropy."""
        return (out.chunk(2, -1)[1] + (_HALF_LOG_TAU + 0.5)).sum(-1)

    def kl(self, out: Tensor, other: Tensor) -> Tensor:
        """Divergence of normal distributions."""
        (mean, log_std), (its_mean, its_log_std) = out.chunk(2, -1), other.chunk(2, -1)
        square = ((2 * log_std).exp() + (mean - its_mean).square()) * (-2 * its_log_std).exp()
        return (its_log_std - log_std + 0.5 * square - 0.5).sum(-1)

    def _density(self, z: Tensor, log_std: Tensor) -> Tensor:
        return (z * z).sum(-1).mul(-0.5) - log_std.sum(-1) - self.numbers * _HALF_LOG_TAU

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat if len(self.shape) == 1 else flat.reshape(*flat.shape[:-1], *self.shape)


def head_for(space: Space[Any], *, normalize: bool = True) -> Categorical | Choices | DiagGaussian:
    """The head for an action space.

    Args:
        space: of one action.
        normalize: workers add the lower bound to actions of a Box of integers.

    Raises:
        ValueError: no head is for such a space.
    """
    match space:
        case spaces.Discrete():
            return Categorical(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            return Choices(space.nvec.flatten().tolist(), space.shape, space.start.flatten().tolist())
        case spaces.MultiBinary():
            return Choices([2] * math.prod(space.shape), space.shape)
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return DiagGaussian(space.shape)
        case spaces.Box() if np.issubdtype(space.dtype, np.integer):
            counts = (space.high.astype(np.int64) - space.low + 1).flatten().tolist()
            return Choices(counts, space.shape, None if normalize else space.low.flatten().tolist())
    raise ValueError(
        f"no shipped distribution is for the action space {space}: served are Discrete, MultiDiscrete, MultiBinary and "
        "Box; wrap the env to give it one of these, or write compute_actions of a Policy"
    )
