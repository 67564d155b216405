"""Advantages and value targets of a whole fragment in one pass, whatever chunks of episodes it consists of.

    rows        a0 a1 a2 │ b0 b1 ┊        │ an episode ends: terminated, or truncated     ┊ the fragment ends
    after       v1 v2  0 │ v4 V(b2)       values of the states reached; 0 behind a terminated row
                                          V: the open ends, whose values are asked for in one call

J. Schulman et al., 2016, High-dimensional continuous control using generalized advantage estimation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from swath.rollout.episodes.gae import discounted_sum, generalized_advantage
from swath.rollout.spaces import Array


@dataclass(frozen=True)
class Estimator:
    """How advantages are estimated.

    Attributes:
        gamma: discount.
        lambda_: trace decay of generalized advantage estimation.
        use_gae: estimate that way; else advantages are discounted returns, less the values if there is a critic.
        use_critic: whether there are values.

    Raises:
        AssertionError: `use_gae` without `use_critic`.
    """

    gamma: float = 0.9
    lambda_: float = 1.0
    use_gae: bool = True
    use_critic: bool = True

    def __post_init__(self) -> None:
        if self.use_gae and not self.use_critic:
            raise AssertionError("use_gae=True needs values; set use_critic=True, or use_gae=False")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Estimator:
        """As a policy's config says, by `gamma`, `lambda`, `use_gae` and `use_critic`."""
        return cls(config["gamma"], config["lambda"], config["use_gae"], config.get("use_critic", True))


class Estimates(NamedTuple):
    """Advantages and value targets, float32 `[*B, T]`."""

    advantages: Array
    value_targets: Array


@dataclass(frozen=True)
class Chunks:
    """Chunks of trajectories, one behind the other in rows `[*B, T]`.

    Attributes:
        rewards: `[*B, T]`.
        values: of the states acted in, `[*B, T]`; None without a critic.
        terminated: the state reached is an end state, `[*B, T]` bool.
        ends: the chunk ends with this row, as all do where terminated and at the end of the row, `[*B, T]` bool.
    """

    rewards: Array
    values: Array | None
    terminated: Array
    ends: Array

    @property
    def open_ends(self) -> Array:
        """Ends behind which the episode goes on, or could: the values of the states reached matter, `[*B, T]` bool."""
        return np.asarray(self.ends & ~self.terminated)

    def bootstrapped(self, open_values: Array) -> Array:
        """The values of the states reached, float32 `[*B, T]`; 0 behind terminated rows, and without a critic.

        Args:
            open_values: those at the open ends, `[n]` in the order of the rows.
        """
        after = np.zeros(self.rewards.shape, dtype=np.float32)
        if self.values is not None:
            after[..., :-1] = self.values[..., 1:]
            after[self.ends] = 0
        after[self.open_ends] = open_values
        return after


def estimate(chunks: Chunks, bootstrapped: Array, estimator: Estimator) -> Estimates:
    """Advantages and targets; sums are made in float64.

    Args:
        chunks: rewards, values and ends.
        bootstrapped: the values of the states reached, 0 where they are end states, `[*B, T]`.
        estimator: which formulas.

    Raises:
        AssertionError: a critic is to be used, but there are no values.
    """
    if estimator.use_critic and chunks.values is None:
        raise AssertionError("use_critic=True needs the column 'vf_preds'; have the policy write it, or turn it off")
    reward, after, ends = _exact(chunks.rewards), _exact(bootstrapped), torch.tensor(chunks.ends)
    value = torch.zeros_like(reward) if chunks.values is None else _exact(chunks.values)
    gamma = estimator.gamma
    if estimator.use_gae:
        never = torch.zeros_like(ends)  # `after` is 0 already where the state reached is an end state
        advantage = generalized_advantage(reward, value, after, never, ends, gamma=gamma, lmbda=estimator.lambda_)
        target = advantage + value
    else:
        returns = discounted_sum(reward + gamma * after * ends, gamma * (~ends).to(reward.dtype))
        advantage, target = (returns - value, returns) if estimator.use_critic else (returns, torch.zeros_like(returns))
    return Estimates(*(made.to(torch.float32).numpy() for made in (advantage, target)))


def discount_cumsum(x: Array, gamma: float) -> Array:
    """`y_t = x_t + gamma · y_{t+1}` along axis 0, in the dtype of `x`; of integers in float64."""
    values = np.array(x, dtype=None if np.issubdtype(np.asarray(x).dtype, np.floating) else np.float64)
    summand = torch.from_numpy(values).movedim(0, -1)
    return np.ascontiguousarray(discounted_sum(summand, torch.full_like(summand, gamma)).movedim(-1, 0).numpy())


def _exact(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))
