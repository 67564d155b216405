"""The settings of PPO, checked where they are written."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from numbers import Real


@dataclass(frozen=True)
class PPOConfig:
    """Settings of `PPO`; `swath.learn.default_config` picks those that suit an action space.

    Attributes:
        total_frames: frames of the whole training, over which `learning_rate` falls linearly; `None`: it stays.
        learning_rate: of Adam, at the start.
        final_lr_fraction: what is left of `learning_rate` at `total_frames`.
        gamma: discount.
        gae_lambda: λ of generalised advantage estimation.
        clip: how far the ratio of probabilities may leave 1.
        clip_value: how far, in units of the returns' std, a value may leave its old one; `None`: no limit.
        epochs: how often each frame is used.
        minibatch_size: about how many frames make one gradient; the batch is cut into equal parts.
        value_coef: weight of the value loss, which is in units of the returns' std.
        entropy_coef: weight of the entropy bonus.
        max_grad_norm: the gradient is shortened to this norm.
        normalise_advantage: whether the advantages of a batch get mean 0 and std 1.
        seed: of the order in which frames are used.

    Raises:
        ValueError: a setting outside its range; the message says which.
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
        for name, count in self._counts().items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise _refused(name, count, "a whole number, 1 or more")
        for name, limit in self._limits().items():
            if not (_is_number(limit) and 0 < limit < inf):
                raise _refused(name, limit, "above 0 and finite")
        for name, weight in {"value_coef": self.value_coef, "entropy_coef": self.entropy_coef}.items():
            if not (_is_number(weight) and 0 <= weight < inf):
                raise _refused(name, weight, "0 or more and finite")
        shares = {"gamma": self.gamma, "gae_lambda": self.gae_lambda, "final_lr_fraction": self.final_lr_fraction}
        for name, share in shares.items():
            if not (_is_number(share) and 0 <= share <= 1):
                raise _refused(name, share, "between 0 and 1")
        if not isinstance(self.normalise_advantage, bool):
            raise _refused("normalise_advantage", self.normalise_advantage, "true or false")

    def remaining(self, frames: int) -> float:
        """Share of `learning_rate` that is left after so many frames."""
        if self.total_frames is None:
            return 1.0
        left = max(0.0, 1 - frames / self.total_frames)
        return self.final_lr_fraction + (1 - self.final_lr_fraction) * left

    def _counts(self) -> dict[str, int]:
        counts = {"epochs": self.epochs, "minibatch_size": self.minibatch_size}
        return counts if self.total_frames is None else {**counts, "total_frames": self.total_frames}

    def _limits(self) -> dict[str, float]:
        limits = {"learning_rate": self.learning_rate, "clip": self.clip, "max_grad_norm": self.max_grad_norm}
        return limits if self.clip_value is None else {**limits, "clip_value": self.clip_value}


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _refused(name: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"PPOConfig: {name}={value!r} must be {wanted}")
