"""Distributions over actions as objects, for losses; acting uses the heads alone, without an object per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from swath.learn.heads import Categorical
from swath.rollout_workers.policies.heads import ActionHead, Choices, DiagGaussian, head_for


class TorchDistribution:
    """What a network's output `[*B, n]` says about actions.

    Attributes:
        inputs: the output.
        last_sample: what was drawn last, None at first.
    """

    def __init__(self, inputs: Any, head: ActionHead) -> None:
        self.inputs: Tensor = torch.as_tensor(inputs)
        self.last_sample: Tensor | None = None
        self._head = head

    def sample(self) -> Tensor:
        """Random actions."""
        self.last_sample = self._head.sample(self.inputs)[0]
        return self.last_sample

    def deterministic_sample(self) -> Tensor:
        """The most probable actions."""
        self.last_sample = self._head.mode(self.inputs)[0]
        return self.last_sample

    def sampled_action_logp(self) -> Tensor:
        """Log-probability `[*B]` of the last actions.

        Raises:
            ValueError: none were drawn.
        """
        if self.last_sample is None:
            raise ValueError("sampled_action_logp() is of the last sample; call sample() first")
        return self.logp(self.last_sample)

    def logp(self, actions: Any) -> Tensor:
        """Log-probability `[*B]`."""
        return self._head.log_prob(self.inputs, torch.as_tensor(actions, device=self.inputs.device))

    def entropy(self) -> Tensor:
        """Entropy `[*B]` in nats."""
        return self._head.entropy(self.inputs)

    def kl(self, other: TorchDistribution) -> Tensor:
        """Kullback-Leibler divergence `[*B]` of `other` from this."""
        return self._head.kl(self.inputs, other.inputs)

    @staticmethod
    def required_model_output_shape(action_space: Space[Any], model_config: Any = None) -> int:  # noqa: ARG004  the field's signature
        """How many numbers a network must give for this action space."""
        return head_for(action_space).inputs


class TorchCategorical(TorchDistribution):
    """A choice, from logits `[*B, n]`.

    Args:
        inputs: the logits.
        model: not used.
        temperature: by which they are divided.
        head: if it is there already.
    """

    def __init__(
        self, inputs: Any, model: nn.Module | None = None, temperature: float = 1.0, *, head: Categorical | None = None
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature={temperature!r} must be above 0")
        logits = torch.as_tensor(inputs)
        super().__init__(logits / temperature if temperature != 1 else logits, head or Categorical(logits.shape[-1]))
        self.model = model


class TorchMultiCategorical(TorchDistribution):
    """Several choices, from their logits side by side, `[*B, Σ n_k]`.

    Args:
        inputs: the logits.
        model: not used.
        input_lens: how many logits each choice has.
        action_space: says of which shape an action is.
        head: if it is there already; then the other two are not read.

    Raises:
        ValueError: neither `input_lens` nor `head`.
    """

    def __init__(
        self,
        inputs: Any,
        model: nn.Module | None = None,
        input_lens: Sequence[int] | None = None,
        action_space: Space[Any] | None = None,
        *,
        head: Choices | None = None,
    ) -> None:
        if head is None:
            if input_lens is None:
                raise ValueError("TorchMultiCategorical needs input_lens: how many logits each choice has")
            head = Choices(np.asarray(input_lens).tolist(), None if action_space is None else action_space.shape)
        super().__init__(inputs, head)
        self.model = model


class TorchDiagGaussian(TorchDistribution):
    """Independent normal numbers, from means and then log-stds, `[*B, 2 k]`.

    Args:
        inputs: means and log-stds.
        model: not used.
        action_space: says of which shape an action is.
        head: if it is there already.
    """

    def __init__(
        self,
        inputs: Any,
        model: nn.Module | None = None,
        *,
        action_space: Space[Any] | None = None,
        head: DiagGaussian | None = None,
    ) -> None:
        values = torch.as_tensor(inputs)
        shape = None if action_space is None else action_space.shape
        super().__init__(values, head or DiagGaussian((values.shape[-1] // 2,) if shape is None else shape))
        self.model = model


DistClass: TypeAlias = Callable[..., TorchDistribution]
"""`dist_class(dist_inputs, model)`."""


def dist_class_of(head: Categorical | Choices | DiagGaussian) -> DistClass:
    """What makes distributions with this head."""
    if isinstance(head, DiagGaussian):
        return partial(TorchDiagGaussian, head=head)
    if isinstance(head, Choices):
        return partial(TorchMultiCategorical, head=head)
    return partial(TorchCategorical, head=head)
