"""From what a network says to an action and its log-probability, without a distribution object per step.

```
 network output [*B, head.inputs] ──▶ sample / mode ──▶ action [*B, *shape], log-probability [*B]
                                 └──▶ log_prob(action), entropy                 with gradients, for the learner
```

All heads have the same five members: `inputs`, `sample`, `mode`, `log_prob`, `entropy`; those whose whole distribution
is in the network's output also have `kl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

_IMPOSSIBLE = -1e30  # a logit whose exponential is 0, yet 0 times it is 0 and not NaN


class Head(Protocol):
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
        self.choices, self.most, self.inputs = len(counts), max(counts), sum(counts)
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


def choices_of(space: Space[Any]) -> Categorical | MultiCategorical | None:
    """The head for a space of choices; None for another space."""
    match space:
        case spaces.Discrete():
            return Categorical(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            return MultiCategorical(space.nvec.flatten().tolist(), space.shape, space.start.flatten().tolist())
        case spaces.MultiBinary():
            return MultiCategorical([2] * prod(space.shape), space.shape)
    return None
