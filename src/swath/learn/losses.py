"""Losses of policy gradients over rows, with the figures that are told about them.

`mean` makes a scalar of `[N]`: it leaves out rows that are padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Mean = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Weighing:
    """How the parts of `surrogate_loss` are limited and weighed.

    Attributes:
        clip: how far the ratio of probabilities may leave 1.
        value_clip: bound of the squared error of a value.
        value: weight of the value loss.
        entropy: weight of the entropy bonus.
        kl: weight of the divergence.
    """

    clip: float
    value_clip: float
    value: float
    entropy: float
    kl: float


class Then(NamedTuple):
    """What is known of rows from when they were collected, `[N]` each."""

    log_prob: Tensor
    advantage: Tensor
    target: Tensor


class Now(NamedTuple):
    """What the policy says of them at present, `[N]` each, with gradients.

    Attributes:
        log_prob: of the actions.
        entropy: of the distributions.
        kl: divergence from those that acted.
        value: of the states; None without a critic.
    """

    log_prob: Tensor
    entropy: Tensor
    kl: Tensor
    value: Tensor | None


class Surrogate(NamedTuple):
    """The loss, with gradients, and its parts as means, without."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor


def gradient_loss(log_prob: Tensor, advantage: Tensor, mean: Mean) -> Tensor:
    """The loss whose gradient is the policy gradient (Williams, 1992)."""
    return -mean(log_prob * advantage)


def surrogate_loss(now: Now, then: Then, weighing: Weighing, mean: Mean) -> Surrogate:
    """The clipped surrogate loss with a divergence penalty (Schulman et al., 2017)."""
    ratio = (now.log_prob - then.log_prob).exp()
    clipped = ratio.clamp(1 - weighing.clip, 1 + weighing.clip)
    policy = -torch.minimum(then.advantage * ratio, then.advantage * clipped)
    value = torch.zeros_like(policy)
    if now.value is not None:
        value = (now.value - then.target).square().clamp(0, weighing.value_clip)
    kl = mean(now.kl)
    total = mean(policy + weighing.value * value - weighing.entropy * now.entropy)
    total = total + weighing.kl * kl if weighing.kl else total
    told = [mean(part.detach()) for part in (policy, value, now.entropy)]
    return Surrogate(total, told[0], told[1], told[2], kl.detach())


@torch.no_grad()
def explained_variance(target: Tensor, value: Tensor, mean: Mean) -> Tensor:
    """Share of the targets' variance that the values explain, at least -1; 0 where the targets are all alike."""
    variance = mean((target - mean(target)).square())
    error = target - value
    rest = mean((error - mean(error)).square())
    return torch.where(variance > 0, (1 - rest / variance).clamp(min=-1), 0.0)
