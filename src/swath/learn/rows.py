"""From a collected batch to the rows that PPO learns from.

```
 batch [*B, T] ──GAE──▶ values, advantages, targets ──flatten, drop masked──▶ TrainingRows [N] ──shuffle──▶ minibatches
```
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from swath.keys import (
    ACTION,
    ADVANTAGE,
    DONE,
    LOG_PROB,
    MASK,
    NEXT,
    REWARD,
    STATE_VALUE,
    TERMINATED,
    TRAJ_IDS,
    VALUE_TARGET,
    under_next,
)
from swath.learn.config import PPOConfig
from swath.learn.policy import NetworkPolicy
from swath.rollout.episodes.gae import GAE


@dataclass(frozen=True)
class TrainingRows:
    """What the loss needs of `N` frames.

    Attributes:
        observation: one tensor `[N, …]` per entry that the policy reads.
        action: `[N, …]`.
        log_prob: of the action, under the policy that acted, `[N]`.
        value: of the state, before the update, `[N]`.
        advantage: `[N]`.
        target: what the value should have been, `[N]`.
    """

    observation: tuple[Tensor, ...]
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.log_prob)

    def take(self, index: Tensor) -> TrainingRows:
        """The rows at these places."""
        rest = (self.action, self.log_prob, self.value, self.advantage, self.target)
        return TrainingRows(tuple(entry[index] for entry in self.observation), *(entry[index] for entry in rest))

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[TrainingRows]:
        """All rows once, in random order, in nearly equal parts of about `size`."""
        order = torch.randperm(len(self), generator=generator).to(self.log_prob.device)
        for index in order.tensor_split(max(1, round(len(self) / size))):
            yield self.take(index)


class _Critic(nn.Module):
    """A policy's values, in the form that `GAE` calls."""

    def __init__(self, policy: NetworkPolicy) -> None:
        super().__init__()
        self.policy, self.in_keys = policy, policy.in_keys

    def forward(self, *observation: Tensor) -> Tensor:
        return self.policy.value(observation)


def rows_of(batch: TensorDictBase, policy: NetworkPolicy, config: PPOConfig) -> TrainingRows:
    """Advantages and targets of a batch `[*B, T]`, as rows on the policy's device; the batch is left as it is.

    Raises:
        KeyError: the batch lacks an entry, such as the log-probabilities of another kind of policy.
        ValueError: every frame is masked.
    """
    mask = batch.get(MASK, None)
    if mask is not None and not mask.any():
        raise ValueError(f"batch of shape {list(batch.shape)} has no frame to learn from: all are masked")
    estimate = GAE(
        gamma=config.gamma,
        lmbda=config.gae_lambda,
        value_network=_Critic(policy),
        average_gae=config.normalise_advantage,
    )
    flat = estimate(_needed(batch, policy)).reshape(-1)
    flat = flat if mask is None else flat[flat[MASK]]
    value, advantage, target = (flat[key].squeeze(-1) for key in (STATE_VALUE, ADVANTAGE, VALUE_TARGET))
    observation = tuple(flat[key] for key in policy.in_keys)
    return TrainingRows(observation, flat[ACTION], flat[LOG_PROB].reshape(-1), value, advantage, target)


def _needed(batch: TensorDictBase, policy: NetworkPolicy) -> TensorDictBase:
    required = [ACTION, LOG_PROB, (NEXT, REWARD), (NEXT, DONE), (NEXT, TERMINATED)]
    required += [key for entry in policy.in_keys for key in (entry, under_next(entry))]
    optional = [key for key in (MASK, TRAJ_IDS) if key in batch.keys(include_nested=True)]
    return batch.select(*required, *optional).to(policy.device)
