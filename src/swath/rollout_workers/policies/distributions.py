"""How a network's output becomes actions, chosen by the action space; and distributions as objects, for losses.

```
Discrete                     logits [n]        ──▶ start … start + n - 1
MultiDiscrete, MultiBinary   logits [Σ n_k]    ──▶ one choice each
Box of integers              logits [Σ n_k]    ──▶ counts from the lower bound, where workers add it; else values
Box of floats                mean, log-std     ──▶ a normal number each, not bounded: workers rescale and clip
```
Acting uses the heads alone, without an object per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from swath.learn.heads import Categorical, DiagGaussian, MultiCategorical, choices_of

ActionHead: TypeAlias = Categorical | MultiCategorical | DiagGaussian


def head_for(space: Space[Any], *, normalize: bool = True) -> ActionHead:
    """The head for an action space.

    Args:
        space: of one action.
        normalize: workers add the lower bound to actions of a Box of integers.

    Raises:
        ValueError: no head is for such a space.
    """
    found: ActionHead | None = choices_of(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        found = DiagGaussian(space.shape)
    elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        counts = (space.high.astype(np.int64) - space.low + 1).flatten().tolist()
        found = MultiCategorical(counts, space.shape, None if normalize else space.low.flatten().tolist())
    if found is None:
        raise ValueError(
            f"no shipped distribution is for the action space {space}: served are Discrete, MultiDiscrete, MultiBinary "
            "and Box; wrap the env to give it one of these, or write compute_actions of a Policy"
        )
    return found


class TorchDistribution:
    """What a network's output `[*B, n]` says about actions.

    Attributes:
        inputs: the output.
        last_sample: what was drawn last, None at first.
    """

    def __init__(self, inputs: Any, model: nn.Module | None, head: ActionHead) -> None:
        self.inputs: Tensor = torch.as_tensor(inputs)
        self.model = model
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


class TorchCategorical(TorchDistribution):
    """A choice, from logits `[*B, n]`.

    Args:
        inputs: the logits.
        model: not used.
        head: if it is there already.
    """

    def __init__(self, inputs: Any, model: nn.Module | None = None, *, head: Categorical | None = None) -> None:
        super().__init__(inputs, model, head or Categorical(len(inputs[0])))


class TorchMultiCategorical(TorchDistribution):
    """Several choices, from their logits side by side, `[*B, Σ n_k]`.

    Args:
        inputs: the logits.
        model: not used.
        input_lens: how many logits each choice has.
        head: if it is there already; then `input_lens` is not read.
    """

    def __init__(
        self, inputs: Any, model: nn.Module | None = None, input_lens: Sequence[int] = (), *, head: Any = None
    ) -> None:
        super().__init__(inputs, model, head or MultiCategorical(np.asarray(input_lens).tolist()))


class TorchDiagGaussian(TorchDistribution):
    """Independent normal numbers, from means and then log-stds, `[*B, 2 k]`.

    Args:
        inputs: means and log-stds.
        model: not used.
        head: if it is there already.
    """

    def __init__(self, inputs: Any, model: nn.Module | None = None, *, head: DiagGaussian | None = None) -> None:
        super().__init__(inputs, model, head or DiagGaussian((len(inputs[0]) // 2,)))


DistClass: TypeAlias = Callable[..., TorchDistribution]
"""`dist_class(dist_inputs, model)`."""


def dist_class_of(head: ActionHead) -> DistClass:
    """What makes distributions with this head."""
    kinds: dict[type, DistClass] = {
        Categorical: TorchCategorical,
        MultiCategorical: TorchMultiCategorical,
        DiagGaussian: TorchDiagGaussian,
    }
    return partial(kinds[type(head)], head=head)
