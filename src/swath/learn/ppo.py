"""Proximal policy optimisation (Schulman et al., "Proximal Policy Optimization Algorithms", 2017): one clear reference.

```
 batch [*B, T] ──rows_of──▶ TrainingRows [N] ──epochs × minibatches──▶ loss ──▶ Adam ──▶ means of the losses
                              └─▶ running figures: of the targets before, of the observations after the epochs
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from swath.learn.config import PPOConfig
from swath.learn.policy import NetworkPolicy
from swath.learn.rows import TrainingRows, rows_of

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
        for group in self._adam.param_groups:
            group["lr"] = rate
        self.critic.update(rows.target)
        means = torch.stack([self._step(part) for part in self._parts(rows)]).mean(0).tolist()
        self.policy.update_encoder(rows.observation)
        self.updates += 1
        self.frames += len(rows)
        losses = dict(zip(STATISTICS, means, strict=True))
        _require_finite(losses, self.updates)
        return losses | {"explained_variance": _explained(rows), "learning_rate": rate}

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

    def _parts(self, rows: TrainingRows) -> Iterator[TrainingRows]:
        for _ in range(self.config.epochs):
            yield from rows.minibatches(self.config.minibatch_size, self._generator)

    def _step(self, rows: TrainingRows) -> Tensor:
        """One gradient; returns `STATISTICS`."""
        config = self.config
        log_prob, entropy, value = self.policy.evaluate(rows.observation, rows.action)
        log_ratio = log_prob - rows.log_prob
        policy_loss = clipped_loss(log_ratio.exp(), rows.advantage, config.clip)
        value_loss = self._value_loss(value, rows)
        bonus = entropy.mean()
        self._adam.zero_grad()
        torch.autograd.backward(policy_loss + config.value_coef * value_loss - config.entropy_coef * bonus)
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm)
        self._adam.step()
        return torch.stack([policy_loss, value_loss, bonus, *_drift(log_ratio, config.clip), norm]).detach()

    def _value_loss(self, value: Tensor, rows: TrainingRows) -> Tensor:
        std, limit = self.critic.std, self.config.clip_value
        error = (value - rows.target).square()
        if limit is not None:
            near = rows.value + (value - rows.value).clamp(-limit * std, limit * std)
            error = torch.maximum(error, (near - rows.target).square())
        return 0.5 * (error / std.square()).mean()


def clipped_loss(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The clipped surrogate objective, eq. 7 of the paper, as a loss: scalar from `[N]` and `[N]`."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


@torch.no_grad()
def _drift(log_ratio: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """How far the policy has moved: an estimate of the KL divergence that is never negative, and the share clipped."""
    excess = log_ratio.expm1()
    return (excess - log_ratio).mean(), (excess.abs() > clip).to(log_ratio.dtype).mean()


def _explained(rows: TrainingRows) -> float:
    """Share of the targets' variance that the values explained; 0 if there is none."""
    variance = rows.target.var(correction=0)
    return float(1 - (rows.target - rows.value).var(correction=0) / variance) if variance > 0 else 0.0


def _require_finite(losses: dict[str, float], updates: int) -> None:
    bad = {name: value for name, value in losses.items() if not abs(value) < float("inf")}
    if bad:
        raise FloatingPointError(
            f"after update {updates} {bad}: lower learning_rate, or look for observations and rewards that are "
            "not finite with Collector(check_finite=True)"
        )
