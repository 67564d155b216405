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

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from swath.learn.heads import Categorical, MultiCategorical

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Choices(MultiCategorical):
    """Several independent choices, whose logits stand side by side: `counts[0]` of the first, then of the next.

    Args:
        counts: how many actions each choice has, flat.
        shape: of one action; None is `(K,)`.
        start: the first action of each choice, flat; None is 0.
    """

    place: Tensor

    def __init__(
        self, counts: Sequence[int], shape: Sequence[int] | None = None, start: Sequence[int] | None = None
    ) -> None:
        super().__init__(counts, shape, start)
        self.inputs, self._even = sum(counts), len(set(counts)) == 1
        begins = np.cumsum([0, *counts[:-1]])
        place = np.minimum(np.arange(self.most), np.asarray(counts)[:, None] - 1) + begins[:, None]
        self.register_buffer("place", torch.from_numpy(place.reshape(-1)), persistent=False)

    def _split(self, out: Tensor) -> Tensor:
        return super()._split(out if self._even else out[..., self.place])


class DiagGaussian(nn.Module):
    """Independent normal numbers `[*B, *shape]`, from their means and then their log-stds.

    Args:
        shape: of one action.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape, self.numbers = tuple(shape), math.prod(shape)
        self.inputs = 2 * self.numbers

    def sample(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """A normal action."""
        mean, log_std = out.chunk(2, -1)
        noise = torch.empty_like(mean).normal_()
        return self._shaped(torch.addcmul(mean, log_std.exp(), noise)), self._density(noise, log_std)

    def mode(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The mean."""
        mean, log_std = out.chunk(2, -1)
        return self._shaped(mean), self._density(torch.zeros_like(mean), log_std)

    def log_prob(self, out: Tensor, action: Tensor) -> Tensor:
        """Log-density."""
        mean, log_std = out.chunk(2, -1)
        return self._density((action.reshape(mean.shape) - mean) * (-log_std).exp(), log_std)

    def entropy(self, out: Tensor) -> Tensor:
        """Differential entropy."""
        return (out.chunk(2, -1)[1] + (_HALF_LOG_TAU + 0.5)).sum(-1)

    def kl(self, out: Tensor, other: Tensor) -> Tensor:
        """Divergence of normal distributions."""
        (mean, log_std), (its_mean, its_log_std) = out.chunk(2, -1), other.chunk(2, -1)
        square = ((2 * log_std).exp() + (mean - its_mean).square()) * (-2 * its_log_std).exp()
        return (its_log_std - log_std + 0.5 * square - 0.5).sum(-1)

    def _density(self, z: Tensor, log_std: Tensor) -> Tensor:
        return (z * z).sum(-1).mul(-0.5) - log_std.sum(-1) - self.numbers * _HALF_LOG_TAU

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat if len(self.shape) == 1 else flat.reshape(*flat.shape[:-1], *self.shape)


def head_for(space: Space[Any], *, normalize: bool = True) -> ActionHead:
    """The head for an action space.

    Args:
        space: of one action.
        normalize: workers add the lower bound to actions of a Box of integers.

    Raises:
        ValueError: no head is for such a space.
    """
    match space:
        case spaces.Discrete():
            return Categorical(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            return Choices(space.nvec.flatten().tolist(), space.shape, space.start.flatten().tolist())
        case spaces.MultiBinary():
            return Choices([2] * math.prod(space.shape), space.shape)
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return DiagGaussian(space.shape)
        case spaces.Box() if np.issubdtype(space.dtype, np.integer):
            counts = (space.high.astype(np.int64) - space.low + 1).flatten().tolist()
            return Choices(counts, space.shape, None if normalize else space.low.flatten().tolist())
    raise ValueError(
        f"no shipped distribution is for the action space {space}: served are Discrete, MultiDiscrete, MultiBinary and "
        "Box; wrap the env to give it one of these, or write compute_actions of a Policy"
    )


ActionHead: TypeAlias = Categorical | Choices | DiagGaussian


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
        self,
        inputs: Any,
        model: nn.Module | None = None,
        input_lens: Sequence[int] = (),
        *,
        head: Choices | None = None,
    ) -> None:
        super().__init__(inputs, model, head or Choices(np.asarray(input_lens).tolist()))


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
    if isinstance(head, DiagGaussian):
        return partial(TorchDiagGaussian, head=head)
    if isinstance(head, Choices):
        return partial(TorchMultiCategorical, head=head)
    return partial(TorchCategorical, head=head)
