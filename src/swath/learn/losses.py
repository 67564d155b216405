"""The loss of proximal policy optimisation over rows, with the figures that are reported about it.

`mean` makes a scalar of `[N]`: it leaves out rows that are padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Mean = Callable[[Tensor], Tensor]


class Surrogate(NamedTuple):
    """The loss, with gradients, and its parts as means, without."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor


class Weighing(NamedTuple):
    """How the parts of `surrogate_loss` are limited and weighed.

    Attributes:
        clip: how far the ratio of probabilities may leave 1.
        value: weight of the value loss.
        entropy: weight of the entropy bonus.
        kl: weight of the divergence.
    """

    clip: float
    value: float
    entropy: float
    kl: float = 0.0


def surrogate_loss(
    log_ratio: Tensor,
    advantage: Tensor,
    value: Tensor | None,
    entropy: Tensor,
    weighing: Weighing,
    kl: Tensor | None = None,
    mean: Mean = torch.mean,
) -> Surrogate:
    """The clipped surrogate loss with a divergence penalty (Schulman et al., 2017, eq. 7 to 9), of rows `[N]`.

    Args:
        log_ratio: log-probability of the actions now, less that when they were chosen.
        advantage: of the actions.
        value: loss of the values; None without a critic.
        entropy: of the distributions now.
        weighing: of the parts.
        kl: divergence from the distributions that acted; None for none.
        mean: of rows.
    """
    clip, value_coef, entropy_coef, kl_coef = weighing
    ratio = log_ratio.exp()
    policy = mean(-torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip)))
    none = torch.zeros_like(policy)
    values, divergence = (none if part is None else mean(part) for part in (value, kl))
    bonus = mean(entropy)
    total = policy + value_coef * values - entropy_coef * bonus
    total = total + kl_coef * divergence if kl_coef else total
    return Surrogate(total, policy.detach(), values.detach(), bonus.detach(), divergence.detach())


@torch.no_grad()
def explained_variance(target: Tensor, value: Tensor, mean: Mean = torch.mean) -> Tensor:
    """Share of the targets' variance that the values explain, at least -1; 0 where the targets are all alike."""
    variance = mean((target - mean(target)).square())
    error = target - value
    rest = mean((error - mean(error)).square())
    return torch.where(variance > 0, (1 - rest / variance).clamp(min=-1), 0.0)
