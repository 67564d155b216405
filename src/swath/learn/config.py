"""The settings of PPO, checked where they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any


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
        for wanted, fits, names in _RULES:
            for name in names:
                value = getattr(self, name)
                if value is None and name in ("total_frames", "clip_value"):
                    continue
                is_flag = name == "normalise_advantage"
                if isinstance(value, bool) != is_flag or not isinstance(value, Real) or not fits(value):
                    raise ValueError(f"PPOConfig: {name}={value!r} must be {wanted}")

    def remaining(self, frames: int) -> float:
        """Share of `learning_rate` that is left after so many frames."""
        if self.total_frames is None:
            return 1.0
        left = max(0.0, 1 - frames / self.total_frames)
        return self.final_lr_fraction + (1 - self.final_lr_fraction) * left


_RULES: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    (
        "a whole number, 1 or more",
        lambda x: isinstance(x, int) and x >= 1,
        ("total_frames", "epochs", "minibatch_size"),
    ),
    ("above 0 and finite", lambda x: 0 < x < inf, ("learning_rate", "clip", "clip_value", "max_grad_norm")),
    ("0 or more and finite", lambda x: 0 <= x < inf, ("value_coef", "entropy_coef")),
    ("between 0 and 1", lambda x: 0 <= x <= 1, ("gamma", "gae_lambda", "final_lr_fraction")),
    ("true or false", lambda _: True, ("normalise_advantage",)),
)
"""What is wanted, whether a value is that, and which settings must be."""
