"""Proximal policy optimisation (Schulman et al., "Proximal Policy Optimization Algorithms", 2017): one clear reference.

```
 batch [*B, T] ──GAE, flatten, drop masked──▶ rows [N] ──epochs × minibatches──▶ loss ──▶ Adam ──▶ means of the losses
                └─▶ running statistics: of the targets before, of the observations after the epochs
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, isfinite
from numbers import Real
from typing import Any, TypeAlias

import torch
from gymnasium import Space, spaces
from tensordict import TensorDictBase
from torch import Tensor, nn

from swath import keys
from swath.keys import NEXT, Key, under_next
from swath.learn.networks import is_image
from swath.learn.policy import NetworkPolicy
from swath.rollout.episodes.gae import GAE
from swath.rollout.episodes.reshape import valid_rows
from swath.rollout.spaces import observation_leaves

Rows: TypeAlias = dict[Key, Tensor]
"""Columns `[N, …]` by the keys of the batch."""

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "gradient_norm")
"""Statistics of each minibatch; `update` returns their means."""

_RULES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("total_frames epochs minibatch_size", "a whole number, 1 or more", lambda x: isinstance(x, int) and x >= 1),
    ("learning_rate clip clip_value max_grad_norm", "above 0 and finite", lambda x: 0 < x < inf),
    ("value_coef entropy_coef", "0 or more and finite", lambda x: 0 <= x < inf),
    ("gamma gae_lambda final_lr_fraction", "between 0 and 1", lambda x: 0 <= x <= 1),
)
"""Names of settings, and their condition in words and as a function."""


@dataclass(frozen=True)
class LearnerConfig:
    """Settings of `PPO`; `swath.learn.default_config` chooses them for an action space.

    Attributes:
        total_frames: frames of the whole training, over which `learning_rate` falls linearly; `None`: it is constant.
        learning_rate: learning rate of Adam, at the start.
        final_lr_fraction: `learning_rate` at `total_frames`, as a fraction of the first.
        gamma: discount.
        gae_lambda: λ of generalised advantage estimation.
        clip: clip range of the probability ratio around 1.
        clip_value: clip range of a value around its old one, in units of the returns' std; `None`: no clipping.
        epochs: number of passes over the frames of a batch.
        minibatch_size: approximate number of frames per gradient; the batch is split into equal parts.
        value_coef: weight of the value loss, which is in units of the returns' std.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: norm to which gradients are clipped.
        normalise_advantage: whether to normalise the advantages of a batch to mean 0 and std 1.
        seed: seed of the order of frames.

    Raises:
        ValueError: a setting outside its range; the message names it.
    """

    total_frames: int | None = None
    learning_rate: float = 1e-3
    final_lr_fraction: float = 0.0
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_value: float | None = None
    epochs: int = 10
    minibatch_size: int = 256
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    max_grad_norm: float = 0.5
    normalise_advantage: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for names, expected, is_valid in _RULES:
            for name in names.split():
                value = getattr(self, name)
                if value is None and name in ("total_frames", "clip_value"):
                    continue
                if isinstance(value, bool) or not isinstance(value, Real) or not is_valid(value):
                    raise ValueError(f"LearnerConfig: {name}={value!r} must be {expected}")

    def remaining(self, frames: int) -> float:
        """Return the fraction of `learning_rate` after a number of frames."""
        if self.total_frames is None:
            return 1.0
        decay = max(0.0, 1 - frames / self.total_frames)
        return self.final_lr_fraction + (1 - self.final_lr_fraction) * decay


def default_config(observation_space: Space[Any], action_space: Space[Any]) -> LearnerConfig:
    """Return settings of PPO that need no tuning on common tasks of this kind.

    Args:
        observation_space: observations of one env; tells images from the rest.
        action_space: actions of one env.
    """
    if any(map(is_image, observation_leaves(observation_space))):
        return LearnerConfig(learning_rate=2.5e-4, epochs=4, clip=0.1, entropy_coef=0.01)
    if isinstance(action_space, spaces.Box):
        return LearnerConfig()
    return LearnerConfig(entropy_coef=0.01)


class PPO:
    """A PPO learner, which improves a policy from batches that it collected.

    The policy is changed in place. Not thread-safe; `update` blocks until done.

    Args:
        policy: a policy with a critic, for example from `make_policy`.
        config: settings; `default_config` chooses them for an action space.

    Raises:
        ValueError: the policy has no critic.
    """

    def __init__(self, policy: NetworkPolicy, config: LearnerConfig | None = None) -> None:
        self.policy, self.config = policy, config or LearnerConfig()
        self.critic = policy.require_critic()
        self.frames, self.updates = 0, 0
        self._adam = torch.optim.Adam(policy.parameters(), self.config.learning_rate, eps=1e-5, fused=True)
        self._generator = torch.Generator().manual_seed(self.config.seed)

    def __repr__(self) -> str:
        return f"<PPO after {self.updates} updates, {self.frames} frames; learning rate {self.learning_rate:.2g}>"

    @property
    def learning_rate(self) -> float:
        """Return the learning rate of the next update."""
        return self.config.learning_rate * self.config.remaining(self.frames)

    def update(self, batch: TensorDictBase) -> dict[str, float]:
        """Learn from a batch `[*B, T]` that this policy collected with its present weights.

        Truncated frames, and the last frame of each row, bootstrap with the value of their true next observation; a
        frame whose `("next", "final_observation_missing")` is true counts as terminated.
        Masked frames are left out.

        Returns:
            Means over the minibatches of `STATISTICS`, then `explained_variance` of the values before the update,
            and the `learning_rate` used. Value losses are in units of the returns' standard deviation.

        Raises:
            KeyError: an entry of the batch is missing.
            ValueError: every frame is masked.
            FloatingPointError: a loss is NaN or infinite; the policy is no longer usable.
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
        if non_finite := {name: value for name, value in losses.items() if not isfinite(value)}:
            advice = "lower learning_rate, or look for observations and rewards that are not finite"
            error = FloatingPointError(f"after update {self.updates} {non_finite}: {advice}")
            error.add_note("Collector(check_finite=True) names them, with env, step, seed and action")
            raise error
        return losses | {"explained_variance": explained, "learning_rate": rate}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the learner without the policy's `state_dict`: tensors and plain values."""
        counts = {"frames": self.frames, "updates": self.updates}
        return {"adam": self._adam.state_dict(), "generator": self._generator.get_state(), **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`; load the policy's weights separately.

        Raises:
            KeyError: a part is missing.
            ValueError: the optimiser's part belongs to another network.
        """
        self._adam.load_state_dict(state["adam"])
        self._generator.set_state(state["generator"])
        self.frames, self.updates = state["frames"], state["updates"]

    def _minibatches(self, rows: Rows) -> Iterator[Rows]:
        """Yield, in each epoch, all rows once, in random order and nearly equal parts."""
        n_rows, device = len(rows[keys.LOG_PROB]), rows[keys.LOG_PROB].device
        for _ in range(self.config.epochs):
            order = torch.randperm(n_rows, generator=self._generator).to(device)
            for index in order.tensor_split(max(1, round(n_rows / self.config.minibatch_size))):
                yield {key: column[index] for key, column in rows.items()}

    def _step(self, rows: Rows) -> Tensor:
        """Make one gradient step and return `STATISTICS`."""
        config, std = self.config, self.critic.std
        log_prob, entropy, value = self.policy.evaluate([rows[key] for key in self.policy.in_keys], rows[keys.ACTION])
        log_ratio = log_prob - rows[keys.LOG_PROB]
        policy_loss = clipped_surrogate(log_ratio, rows[keys.ADVANTAGE], config.clip).mean()
        old, target = rows[keys.STATE_VALUE], rows[keys.VALUE_TARGET]
        error = (value - target).square()
        if config.clip_value is not None:
            clipped = old + (value - old).clamp(-config.clip_value * std, config.clip_value * std)
            error = torch.maximum(error, (clipped - target).square())
        value_loss, entropy = (0.5 * error / std.square()).mean(), entropy.mean()
        loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
        self._adam.zero_grad()
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm)
        self._adam.step()
        with torch.no_grad():
            excess = log_ratio.expm1()  # `excess - log_ratio` estimates the KL divergence and is never negative
            drift = (excess - log_ratio).mean(), (excess.abs() > config.clip).to(log_ratio.dtype).mean()
            return torch.stack([policy_loss, value_loss, entropy, *drift, norm])


class _Critic(nn.Module):
    """The value network of a policy, for `GAE`."""

    def __init__(self, policy: NetworkPolicy) -> None:
        super().__init__()
        self.policy, self.in_keys = policy, policy.in_keys

    def forward(self, *observation: Tensor) -> Tensor:
        values: Tensor = self.policy.value(observation)
        return values


def rows_of(batch: TensorDictBase, policy: NetworkPolicy, config: LearnerConfig) -> Rows:
    """Return the rows `[N]` of a batch `[*B, T]` with inputs of the loss, on the policy's device.

    Raises:
        KeyError: an entry of the batch is missing, such as log-probabilities of another kind of policy.
        ValueError: every frame is masked.
    """
    mask = batch.get(keys.MASK, None)
    if mask is not None and not mask.any():
        raise ValueError(f"batch of shape {list(batch.shape)} has no frame to learn from: all are masked")
    critic, average = _Critic(policy), config.normalise_advantage
    estimate = GAE(gamma=config.gamma, lmbda=config.gae_lambda, value_network=critic, average_gae=average)
    needed = [keys.ACTION, keys.LOG_PROB, *((NEXT, name) for name in (keys.REWARD, keys.DONE, keys.TERMINATED))]
    needed += [key for entry in policy.in_keys for key in (entry, under_next(entry))]
    needed += [key for key in (keys.MASK, keys.TRAJ_IDS, keys.MISSING) if key in batch.keys(include_nested=True)]
    flat = valid_rows(estimate(batch.select(*needed).to(policy.device)))
    numbers = (keys.LOG_PROB, keys.STATE_VALUE, keys.ADVANTAGE, keys.VALUE_TARGET)
    return {key: flat[key] for key in (*policy.in_keys, keys.ACTION)} | {key: flat[key].reshape(-1) for key in numbers}


Mean = Callable[[Tensor], Tensor]
"""Mean of `[N]`, which may leave out rows of padding."""


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return the policy's loss `[N]` (Schulman et al., 2017, eq. 7).

    Args:
        log_ratio: present log-probability of the actions, minus their log-probability in the batch.
        advantage: advantage of the actions.
        clip: clip range of the probability ratio around 1.
    """
    ratio = log_ratio.exp()
    return -torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip))


@torch.no_grad()
def explained_variance(target: Tensor, value: Tensor, mean: Mean = torch.mean) -> Tensor:
    """Return the share of the targets' variance that the values explain, at least -1; 0 if all targets are equal."""
    variance = mean((target - mean(target)).square())
    error = target - value
    error_variance = mean((error - mean(error)).square())
    return torch.where(variance > 0, (1 - error_variance / variance).clamp(min=-1), 0.0)
