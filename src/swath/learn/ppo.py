"""Proximal policy optimisation (Schulman et al., "Proximal Policy Optimization Algorithms", 2017): one clear reference.

```
 batch [*B, T] ──GAE, flatten, drop masked──▶ rows [N] ──epochs × minibatches──▶ loss ──▶ Adam ──▶ means of the losses
                └─▶ running figures: of the targets before, of the observations after the epochs
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from swath import keys
from swath.keys import NEXT, Key, under_next
from swath.learn.config import PPOConfig
from swath.learn.losses import Weighing, explained_variance, surrogate_loss
from swath.learn.policy import NetworkPolicy
from swath.rollout.episodes.gae import GAE

Rows: TypeAlias = dict[Key, Tensor]
"""Columns `[N, …]` by the keys of the batch."""

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "gradient_norm")
"""What each minibatch reports; `update` gives their means."""

_ADAM_EPSILON = 1e-5


class PPO:
    """Improves a policy from batches that it collected.

    The policy is changed in place. Not thread-safe; `update` blocks until done.

    Args:
        policy: with a critic, such as `make_policy` builds.
        config: settings; `default_config` picks those that suit an action space.

    Raises:
        ValueError: the policy has no critic.
    """

    def __init__(self, policy: NetworkPolicy, config: PPOConfig | None = None) -> None:
        self.policy, self.config = policy, config or PPOConfig()
        self.critic = policy.require_critic()
        self.frames, self.updates = 0, 0
        self._adam = torch.optim.Adam(policy.parameters(), self.config.learning_rate, eps=_ADAM_EPSILON, fused=True)
        self._generator = torch.Generator().manual_seed(self.config.seed)

    def __repr__(self) -> str:
        return f"<PPO after {self.updates} updates, {self.frames} frames; learning rate {self.learning_rate:.2g}>"

    @property
    def learning_rate(self) -> float:
        """What the next update uses."""
        return self.config.learning_rate * self.config.remaining(self.frames)

    def update(self, batch: TensorDictBase) -> dict[str, float]:
        """Learn from a batch `[*B, T]` that this policy collected with its present weights.

        Frames that ended an episode by truncation, and the last of each row, bootstrap with the value of their true
        next observation. Masked frames are left out.

        Returns:
            Means over the minibatches of `STATISTICS`, then `explained_variance` of the values before the update,
            and the `learning_rate` used. Value losses are in units of the returns' standard deviation.

        Raises:
            KeyError: the batch lacks an entry.
            ValueError: every frame is masked.
            FloatingPointError: a loss is NaN or infinite; the policy is not usable any more.
        """
        rows, rate = rows_of(batch, self.policy, self.config), self.learning_rate
        explained = float(explained_variance(rows[keys.VALUE_TARGET], rows[keys.STATE_VALUE]))
        for group in self._adam.param_groups:
            group["lr"] = rate
        self.critic.update(rows[keys.VALUE_TARGET])
        means = torch.stack([self._step(part) for part in self._minibatches(rows)]).mean(0).tolist()
        self.policy.update_encoder([rows[key] for key in self.policy.in_keys])
        self.updates += 1
        self.frames += len(rows[keys.LOG_PROB])
        losses = dict(zip(STATISTICS, means, strict=True))
        _require_finite(losses, self.updates)
        return losses | {"explained_variance": explained, "learning_rate": rate}

    def state_dict(self) -> dict[str, Any]:
        """What `update` needs to go on exactly, beside the policy's own `state_dict`: tensors and plain values."""
        return {
            "adam": self._adam.state_dict(),
            "generator": self._generator.get_state(),
            "frames": self.frames,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken; load the policy's weights beside it.

        Raises:
            KeyError: a part is missing.
            ValueError: the optimiser's part belongs to another network.
        """
        self._adam.load_state_dict(state["adam"])
        self._generator.set_state(state["generator"])
        self.frames, self.updates = state["frames"], state["updates"]

    def _minibatches(self, rows: Rows) -> Iterator[Rows]:
        """In each epoch all rows once, in random order, in nearly equal parts."""
        n_rows, device = len(rows[keys.LOG_PROB]), rows[keys.LOG_PROB].device
        for _ in range(self.config.epochs):
            order = torch.randperm(n_rows, generator=self._generator).to(device)
            for index in order.tensor_split(max(1, round(n_rows / self.config.minibatch_size))):
                yield {key: column[index] for key, column in rows.items()}

    def _step(self, rows: Rows) -> Tensor:
        """One gradient; returns `STATISTICS`."""
        config = self.config
        log_prob, entropy, value = self.policy.evaluate([rows[key] for key in self.policy.in_keys], rows[keys.ACTION])
        log_ratio = log_prob - rows[keys.LOG_PROB]
        weighing = Weighing(config.clip, config.value_coef, config.entropy_coef)
        loss = surrogate_loss(log_ratio, rows[keys.ADVANTAGE], self._value_loss(value, rows), entropy, weighing)
        self._adam.zero_grad()
        torch.autograd.backward(loss.total)
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm)
        self._adam.step()
        return torch.stack([loss.policy, loss.value, loss.entropy, *_drift(log_ratio, config.clip), norm]).detach()

    def _value_loss(self, value: Tensor, rows: Rows) -> Tensor:
        std, limit = self.critic.std, self.config.clip_value
        old, target = rows[keys.STATE_VALUE], rows[keys.VALUE_TARGET]
        error = (value - target).square()
        if limit is not None:
            near = old + (value - old).clamp(-limit * std, limit * std)
            error = torch.maximum(error, (near - target).square())
        return 0.5 * error / std.square()


@torch.no_grad()
def _drift(log_ratio: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """How far the policy has moved: an estimate of the KL divergence that is never negative, and the share clipped."""
    excess = log_ratio.expm1()
    return (excess - log_ratio).mean(), (excess.abs() > clip).to(log_ratio.dtype).mean()


def _require_finite(losses: dict[str, float], updates: int) -> None:
    bad = {name: value for name, value in losses.items() if not abs(value) < float("inf")}
    if bad:
        raise FloatingPointError(
            f"after update {updates} {bad}: lower learning_rate, or look for observations and rewards that are "
            "not finite with Collector(check_finite=True)"
        )


class _Critic(nn.Module):
    """A policy's values, in the form that `GAE` calls."""

    def __init__(self, policy: NetworkPolicy) -> None:
        super().__init__()
        self.policy, self.in_keys = policy, policy.in_keys

    def forward(self, *observation: Tensor) -> Tensor:
        values: Tensor = self.policy.value(observation)
        return values


def rows_of(batch: TensorDictBase, policy: NetworkPolicy, config: PPOConfig) -> Rows:
    """Rows `[N]` of a batch `[*B, T]` with what the loss needs, on the policy's device; the batch is left as it is.

    Raises:
        KeyError: the batch lacks an entry, such as the log-probabilities of another kind of policy.
        ValueError: every frame is masked.
    """
    mask = batch.get(keys.MASK, None)
    if mask is not None and not mask.any():
        raise ValueError(f"batch of shape {list(batch.shape)} has no frame to learn from: all are masked")
    estimate = GAE(
        gamma=config.gamma,
        lmbda=config.gae_lambda,
        value_network=_Critic(policy),
        average_gae=config.normalise_advantage,
    )
    needed = [keys.ACTION, keys.LOG_PROB, *((NEXT, name) for name in (keys.REWARD, keys.DONE, keys.TERMINATED))]
    needed += [key for entry in policy.in_keys for key in (entry, under_next(entry))]
    needed += [key for key in (keys.MASK, keys.TRAJ_IDS) if key in batch.keys(include_nested=True)]
    flat = estimate(batch.select(*needed).to(policy.device)).reshape(-1)
    flat = flat if mask is None else flat[flat[keys.MASK]]
    numbers = (keys.LOG_PROB, keys.STATE_VALUE, keys.ADVANTAGE, keys.VALUE_TARGET)
    return {key: flat[key] for key in (*policy.in_keys, keys.ACTION)} | {key: flat[key].reshape(-1) for key in numbers}
