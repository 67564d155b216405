"""From observations to distributions over actions: the default network, and heads chosen by the action space.

Discrete                     logits [n]        ──▶ start … start + n - 1
MultiDiscrete, MultiBinary   logits [Σ n_k]    ──▶ one choice each
Box of integers              logits [Σ n_k]    ──▶ counts from the lower bound, if workers add it; else values
Box of floats                mean, log-std     ──▶ a normal number each, not bounded: workers rescale and clip

Acting uses the heads alone, without an object per step; distributions as objects are for losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import getitem
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from swath.learn.heads import Categorical, DiagGaussian, MultiCategorical, choice_head
from swath.learn.networks import MLP, Convolutions, VectorEncoder, orthogonal
from swath.rollout.spaces import plain_leaves
from swath.rollout_workers.nests import map_nest, tensor_on

ShippedHead: TypeAlias = Categorical | MultiCategorical | DiagGaussian


def head_for(space: Space[Any], *, normalize: bool = True) -> ShippedHead:
    """Return the head for an action space.

    Args:
        space: of one action.
        normalize: workers add the lower bound to actions of a Box of integers.

    Raises:
        ValueError: there is no head for this space.
    """
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return DiagGaussian(space.shape)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        counts = (space.high.astype(np.int64) - space.low + 1).flatten().tolist()
        return MultiCategorical(counts, space.shape, None if normalize else space.low.flatten().tolist())
    if (head := choice_head(space)) is None:
        served = "Discrete, MultiDiscrete, MultiBinary and Box; wrap the env, or write compute_actions of a Policy"
        raise ValueError(f"no shipped distribution is for the action space {space}: served are {served}")
    return head


class TorchDistribution:
    """A distribution over actions, given by a network's output `[*B, n]`.

    Args:
        inputs: the output.
        model: not used.
        head: reads it.
    """

    def __init__(self, inputs: Any, model: nn.Module | None, head: ShippedHead) -> None:
        self.inputs: Tensor = torch.as_tensor(inputs)
        self.model, self._head = model, head

    def sample(self) -> Tensor:
        """Draw actions."""
        return self._head.sample(self.inputs)[0]

    def deterministic_sample(self) -> Tensor:
        """Return the most probable actions."""
        return self._head.mode(self.inputs)[0]

    def logp(self, actions: Any) -> Tensor:
        """Return the log-probability `[*B]` of actions."""
        return self._head.log_prob(self.inputs, torch.as_tensor(actions, device=self.inputs.device))

    def entropy(self) -> Tensor:
        """Return the entropy `[*B]` in nats."""
        return self._head.entropy(self.inputs)

    def kl(self, other: TorchDistribution) -> Tensor:
        """Return the Kullback-Leibler divergence `[*B]` of `other` from this distribution."""
        return self._head.kl(self.inputs, other.inputs)


class TorchCategorical(TorchDistribution):
    """A distribution over one choice, from logits `[*B, n]`."""

    def __init__(self, inputs: Any, model: Any = None, *, head: Any = None) -> None:
        super().__init__(inputs, model, head or Categorical(inputs.shape[-1]))


class TorchMultiCategorical(TorchDistribution):
    """A distribution over several choices, from concatenated logits `[*B, Σ n_k]`; `input_lens` are the n_k."""

    def __init__(self, inputs: Any, model: Any = None, input_lens: Sequence[int] = (), *, head: Any = None) -> None:
        super().__init__(inputs, model, head or MultiCategorical(list(input_lens)))


class TorchDiagGaussian(TorchDistribution):
    """Independent normal distributions, from means and then log-stds, `[*B, 2 k]`."""

    def __init__(self, inputs: Any, model: Any = None, *, head: Any = None) -> None:
        super().__init__(inputs, model, head or DiagGaussian((inputs.shape[-1] // 2,)))


# `dist_class(dist_inputs, model)`.
DistClass: TypeAlias = Callable[..., TorchDistribution]


def dist_class_of(head: ShippedHead) -> DistClass:
    """Return a function that builds distributions with this head."""
    kinds = {Categorical: TorchCategorical, MultiCategorical: TorchMultiCategorical, DiagGaussian: TorchDiagGaussian}
    return partial(kinds[type(head)], head=head)


_POLICY_GAIN = 0.01


class DefaultNetwork(nn.Module):
    """Maps observations `[n, …]` to `dist_inputs` `[n, num_outputs]`, and to values `[n]` if it has them.

    Args:
        space: of observations: Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple; a Box of rank 3 is an image.
        num_outputs: width of `dist_inputs`.
        model: the setting `model`.
        with_value: whether there are values.

    Raises:
        TypeError: observations of another kind.
    """

    def __init__(self, space: Space[Any], num_outputs: int, model: Mapping[str, Any], *, with_value: bool) -> None:
        super().__init__()
        self._shared = with_value and model["vf_share_layers"]
        self.log_std = nn.Parameter(torch.zeros(num_outputs // 2)) if model["free_log_std"] else None
        outputs = num_outputs if self.log_std is None else num_outputs // 2
        self.policy = Tower(space, outputs + self._shared, model, _POLICY_GAIN)
        self.critic = Tower(space, 1, model, 1.0) if with_value and not self._shared else None
        if self._shared:
            with torch.no_grad():
                orthogonal(self.policy.layers.last_layer[0][-1:], 1.0)

    def forward(self, obs: Any, *, with_values: bool = True) -> Tensor | tuple[Tensor, Tensor]:
        """Return `dist_inputs`, or `(dist_inputs, value)`, for observations `[n, …]`.

        `with_values=False` skips the critic, if it is a separate network.
        """
        dist_inputs, value, log_std = self.policy.forward(obs), None, self.log_std
        if self._shared:
            dist_inputs, value = dist_inputs[..., :-1], dist_inputs[..., -1]
        elif self.critic is not None and with_values:
            value = self.value(obs)
        if log_std is not None:
            dist_inputs = torch.cat([dist_inputs, log_std.expand_as(dist_inputs)], -1)
        return dist_inputs if value is None else (dist_inputs, value)

    def value(self, obs: Any) -> Tensor:
        """Return the values `[n]` alone."""
        critic = self.policy if self.critic is None else self.critic
        return critic.forward(obs)[..., -1]


class Tower(nn.Module):
    """An encoder of observations with hidden layers on top."""

    def __init__(self, space: Space[Any], outputs: int, model: Mapping[str, Any], gain: float) -> None:
        super().__init__()
        leaves = plain_leaves(space, "observation")
        self._paths = [leaf.path for leaf in leaves]
        is_image = isinstance(space, spaces.Box) and len(space.shape) == 3
        self._is_vector = len(leaves) == 1 and len(leaves[0].shape) == 1 and leaves[0].dtype == np.float32
        self._encoder: Convolutions | VectorEncoder = (
            Convolutions(leaves[0].shape, leaves[0].dtype) if is_image else VectorEncoder(leaves, standardise=False)
        )
        sizes = (self._encoder.features, *model["fcnet_hiddens"], outputs)
        self.layers = MLP(sizes, activation=model["fcnet_activation"], out_gain=gain)

    def forward(self, obs: Any) -> Tensor:
        """Return the output of the last layer, `[n, outputs]`."""
        if not self._is_vector:
            obs = self._encoder.forward(*(reduce(getitem, path, obs) for path in self._paths))
        return self.layers.forward(obs, quick=torch.is_inference_mode_enabled())


class Outputs(NamedTuple):
    """A network's outputs for n rows.

    Attributes:
        dist_inputs: `[n, num_outputs]`.
        value: `[n]`; None if it has none.
        states: after the rows, or after each sequence; empty for a network without states.
    """

    dist_inputs: Tensor
    value: Tensor | None
    states: list[Any]


def call_model(model: nn.Module, obs: Any, states: Sequence[Any], seq_lens: Tensor | None, **options: Any) -> Outputs:
    """Call a network and check the form of its outputs.

    Args:
        model: maps `obs` to `dist_inputs` or `(dist_inputs, value)`; a recurrent one maps `(obs, states, seq_lens)`
            and returns its states as well.
        obs: `[n, …]`; consecutive sequences are all of equal length.
        states: before each sequence, `[sequences, …]`.
        seq_lens: rows of each sequence that are no padding; None for a network without states.
        options: of the call, of a network without states.

    Raises:
        TypeError: it returned another form.
    """
    answer = model(obs, **options) if seq_lens is None else model(obs, list(states), seq_lens)
    parts = answer if isinstance(answer, tuple) else (answer,)
    *outputs, new_states = (*parts, ()) if seq_lens is None else parts
    if len(outputs) not in (1, 2) or not isinstance(outputs[0], Tensor):
        expected = "dist_inputs or (dist_inputs, value)" + (", with the states as the last part" if states else "")
        raise TypeError(f"{type(model).__name__} gave {type(answer).__name__}; it must give {expected}")
    value = outputs[1] if len(outputs) == 2 else None
    value = value.squeeze(-1) if value is not None and value.ndim == 2 else value
    return Outputs(outputs[0], value, list(new_states))


def to_device(device: torch.device, nest: Any) -> Any:
    """Move arrays to a device as tensors, in the same memory where possible; float64 becomes float32."""
    if type(nest) is np.ndarray and device.type == "cpu" and nest.dtype == np.float32 and nest.flags.writeable:
        return torch.from_numpy(nest)
    return map_nest(partial(tensor_on, device), nest)
