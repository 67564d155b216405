"""Small networks with orthogonal initialisation, which spend little time in Python, and encoders of observations.

```
 entries [*B, …], one per leaf of the space ──flatten, one-hot──▶ [*B, D] ──running mean and std──▶ features [*B, D]
```

The arithmetic for 8 CartPoles takes about 8 µs; `nn.Sequential` takes as much again to call its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import elu, linear, one_hot, silu

from swath.rollout.spaces import Leaf


def _identity(x: Tensor) -> Tensor:
    return x


def _numpy_tanh_(x: Tensor) -> Tensor:
    """Apply tanh in place by NumPy, in a fifth of PyTorch's time; values differ by up to 6e-8."""
    if not x.is_cpu or x.dtype != torch.float32:
        return torch.tanh_(x)
    array = x.numpy()
    np.tanh(array, out=array)
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "silu": silu,
    "elu": elu,
    "linear": _identity,
}
"""Functions between two layers, by name; each may overwrite its argument."""

_HIDDEN_GAIN, _SMALLEST_STD = 2**0.5, 1e-4


class MLP(nn.Module):
    """A fully connected network, `[*B, sizes[0]]` to `[*B, sizes[-1]]`, without activation after the last layer.

    The parameters belong to the module itself (`weight_0`, `bias_0`, …), so that a call is a plain chain of `linear`.

    Args:
        sizes: widths from input to output, at least two.
        activation: a name in `ACTIVATIONS`.
        out_gain: scale of the last layer's initial weights: small for a policy, 1 for a value.

    Raises:
        ValueError: an unknown activation.
    """

    def __init__(self, sizes: Sequence[int], *, activation: str = "tanh", out_gain: float = 1.0) -> None:
        super().__init__()
        self._activate = activation_named(activation)
        self._activate_quickly = _numpy_tanh_ if activation == "tanh" else self._activate
        gains = [_HIDDEN_GAIN] * (len(sizes) - 2) + [out_gain]
        for i, gain in enumerate(gains):
            self.register_parameter(f"weight_{i}", nn.Parameter(orthogonal(torch.empty(sizes[i + 1], sizes[i]), gain)))
            self.register_parameter(f"bias_{i}", nn.Parameter(torch.zeros(sizes[i + 1])))

    def forward(self, x: Tensor, *, quick: bool = False) -> Tensor:
        """Return the output `[*B, sizes[-1]]` for an input `[*B, sizes[0]]`.

        Args:
            x: the input.
            quick: there are neither gradients nor transforms such as `vmap`, so NumPy may compute activations.
        """
        activate = self._activate_quickly if quick else self._activate
        *hidden, weight, bias = cast("dict[str, Tensor]", self._parameters).values()
        for i in range(0, len(hidden), 2):
            x = activate(linear(x, hidden[i], hidden[i + 1]))
        return linear(x, weight, bias)

    @torch.no_grad()
    def absorb(self, factor: Tensor, offset: Tensor) -> None:
        """Change the first layer so that the output for `x` is the present one for `factor * x + offset`."""
        weight, bias, *_ = self.parameters()
        bias.add_(weight @ offset)
        weight.mul_(factor)

    @property
    def last_layer(self) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the last layer."""
        *_, weight, bias = self.parameters()
        return weight, bias


def orthogonal(weight: Tensor, gain: float = _HIDDEN_GAIN) -> Tensor:
    """Fill a weight with a random orthogonal matrix (Saxe et al., 2014) times `gain`, and return it."""
    filled: Tensor = nn.init.orthogonal_(weight, gain)
    return filled


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation of this name.

    Raises:
        ValueError: no activation of this name; the message lists all names.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation={name!r} is none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class ValueNet(nn.Module):
    """A value function `[*B, D]` to `[*B]` whose network works in units of the returns' running mean and std.

    When mean and std change, the last layer is rescaled so that the values do not change (van Hasselt et al., "Learning
    values across many orders of magnitude", 2016).

    Args:
        network: a network with one output.
        memory: number of updates after which old returns have lost most of their weight.
    """

    mean: Tensor
    std: Tensor
    updates: Tensor

    def __init__(self, network: MLP, memory: int = 10) -> None:
        super().__init__()
        self.network, self.memory = network, memory
        for name, start in (("mean", 0.0), ("std", 1.0), ("updates", 0.0)):
            self.register_buffer(name, torch.tensor(start))

    def forward(self, features: Tensor) -> Tensor:
        """Return values `[*B]` in the units of the reward."""
        return torch.addcmul(self.mean, self.std, self.network(features).squeeze(-1))

    @torch.no_grad()
    def update(self, returns: Tensor) -> None:
        """Move mean and std towards the given returns, without changing any value."""
        self.updates += 1
        share = (1 / self.updates).clamp(min=1 / self.memory)
        delta = returns.mean() - self.mean
        old = torch.where(self.updates == 1, 0.0, self.std**2)
        variance = (1 - share) * (old + share * delta**2) + share * returns.var(correction=0)
        mean, std = self.mean + share * delta, variance.sqrt().clamp(min=_SMALLEST_STD)
        weight, bias = self.network.last_layer
        weight.mul_(self.std / std)
        bias.copy_((self.std * bias + self.mean - mean) / std)
        self.mean.copy_(mean)
        self.std.copy_(std)


# Encoders of observations of any served space into one vector of features

_SMALLEST_VARIANCE, _LIMIT = 1e-8, 10.0
_MAX_FACTOR = 4.0  # a larger factor means a feature that was nearly constant before

Change: TypeAlias = tuple[Tensor, Tensor]
"""Factor and offset `[D]`: the old features are `factor * features + offset`."""


class Standardise(nn.Module):
    """`(x - mean) / std` of features `[*B, D]`, clipped to ±10; the identity before the first `update`."""

    mean: Tensor
    variance: Tensor
    count: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("variance", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale", torch.ones(features))
        self.register_buffer("shift", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised features `[*B, D]`."""
        buffers = cast("dict[str, Tensor]", self._buffers)
        return torch.addcmul(buffers["shift"], x, buffers["scale"]).clamp_(-_LIMIT, _LIMIT)

    @torch.no_grad()
    def update(self, x: Tensor) -> Change | None:
        """Update mean and variance with rows `[N, D]`; all rows since construction have the same weight.

        The formula is from Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances", 1979.

        Returns:
            The change from the new features to the old ones, for networks that read them; `None` after the first
            update.
        """
        first, scale, shift = not self.count, self.scale.clone(), self.shift.clone()
        variance, mean = torch.var_mean(x.to(self.mean.dtype), 0, correction=0)
        share = len(x) / (self.count + len(x))
        delta = mean - self.mean
        self.variance += share * (variance - self.variance + delta * delta * (1 - share))
        self.mean += share * delta
        self.count += len(x)
        self.scale.copy_(self.variance.clamp(min=_SMALLEST_VARIANCE).rsqrt())
        self.shift.copy_(-self.mean * self.variance.clamp(min=_SMALLEST_VARIANCE).rsqrt())
        return None if first else self._change_from(scale, shift)

    def _change_from(self, scale: Tensor, shift: Tensor) -> Change:
        factor = scale / self.scale
        small = (factor < _MAX_FACTOR) & (factor > 1 / _MAX_FACTOR)
        return torch.where(small, factor, 1.0), torch.where(small, shift - self.shift * factor, 0.0)


class Encoder(nn.Module):
    """Encoder of a policy's input entries, `[*B, …]` each, to features `[*B, features]`.

    Attributes:
        features: number of features.
        entries: number of entries.
    """

    features: int
    entries: int = 1

    def update(self, entries: Sequence[Tensor]) -> Change | None:
        """Update running statistics with observations `[N, …]`.

        Returns:
            The change of the features; `None` if there is none, or this is the first update.
        """


class VectorEncoder(Encoder):
    """Concatenation of flattened entries: numbers unchanged, bytes divided by 255, choices one-hot.

    Args:
        leaves: the entries, in the order of the arguments of `forward`.
        standardise: whether to standardise by running mean and std, which only `update` changes.
    """

    standardise: Standardise | None

    def __init__(self, leaves: Sequence[Leaf], *, standardise: bool) -> None:
        super().__init__()
        self.features, self.entries = sum(spaces.flatdim(leaf.space) for leaf in leaves), len(leaves)
        self.standardise = Standardise(self.features) if standardise else None
        self._flatteners = [_flattener(leaf) for leaf in leaves]
        self._is_flat = len(leaves) == 1 and len(leaves[0].shape) == 1 and leaves[0].dtype == np.float32

    def forward(self, *entries: Tensor) -> Tensor:
        """Return the features `[*B, features]`."""
        flat = entries[0] if self._is_flat and entries[0].dtype is torch.float32 else self._flat(entries)
        standardise = self.standardise
        return flat if standardise is None else standardise.forward(flat)

    def update(self, entries: Sequence[Tensor]) -> Change | None:
        """Update the running statistics with observations `[N, …]`."""
        return None if self.standardise is None else self.standardise.update(self._flat(entries))

    def _flat(self, entries: Sequence[Tensor]) -> Tensor:
        return torch.cat([flatten(entry) for flatten, entry in zip(self._flatteners, entries, strict=True)], -1)


def _flattener(leaf: Leaf) -> Callable[[Tensor], Tensor]:
    """Return a function that turns the leaf's `[*B, *shape]` into floats `[*B, width]`."""
    match leaf.space:
        case spaces.Discrete():
            return partial(_one_hot, start=int(leaf.space.start), n=int(leaf.space.n))
        case spaces.MultiDiscrete():
            return partial(_one_hots, space=leaf.space)
    return partial(_numbers, dims=len(leaf.shape), factor=1 / 255 if leaf.dtype == np.uint8 else 1.0)


def _one_hot(x: Tensor, start: int, n: int) -> Tensor:
    return one_hot(x.long() - start, n).to(torch.float32)


def _one_hots(x: Tensor, space: spaces.MultiDiscrete) -> Tensor:
    choices = x.reshape(*x.shape[: x.ndim - len(space.shape)], -1).unbind(-1)
    parts = zip(choices, space.start.flat, space.nvec.flat, strict=True)
    return torch.cat([_one_hot(choice, int(start), int(n)) for choice, start, n in parts], -1)


def _numbers(x: Tensor, dims: int, factor: float) -> Tensor:
    return x.reshape(*x.shape[: x.ndim - dims], -1).to(torch.float32) * factor


SMALLEST = 36
"""Least height and width of images for the large convolutions."""

_LARGE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
_SMALL = ((16, 3, 1, 1), (32, 3, 2, 1), (32, 3, 2, 1))
"""Channels, kernel, stride and padding of each layer."""


class Convolutions(nn.Module):
    """Three convolutions: images `[*B, *shape]` to features `[*B, features]`.

    For large images the layers are from Mnih et al., "Human-level control through deep reinforcement learning", 2015;
    images less than 36 pixels high or wide get kernels of 3 pixels.

    Args:
        shape: shape of one image: `(H, W)`, `(H, W, C)`, or `(C, H, W)` if the first number is less than the last.
        dtype: uint8 is divided by 255.
    """

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike = np.uint8) -> None:
        super().__init__()
        self.shape, self._scale = tuple(shape), 1 / 255 if np.dtype(dtype) == np.uint8 else 1.0
        channels, height, width = channels_first(shape)
        layers: list[nn.Module] = []
        for out, kernel, stride, padding in _LARGE if min(height, width) >= SMALLEST else _SMALL:
            layer = nn.Conv2d(channels, out, kernel, stride, padding)
            orthogonal(layer.weight)
            nn.init.zeros_(cast("Tensor", layer.bias))
            layers += [layer, nn.ReLU(inplace=True)]
            channels = out
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.features = int(self.forward(torch.zeros(1, *shape)).shape[-1])

    def forward(self, images: Tensor) -> Tensor:
        """Return the features `[*B, features]`."""
        batch = images.shape[: images.ndim - len(self.shape)]
        pixels = images.reshape(-1, *self.shape)
        if len(self.shape) == 2:
            pixels = pixels.unsqueeze(1)
        elif _channels_last(self.shape):
            pixels = pixels.movedim(-1, 1)
        features: Tensor = self.layers(pixels.to(torch.float32) * self._scale)
        return features.reshape(*batch, -1)


class ImageEncoder(Encoder):
    """uint8 images `[*B, *shape]` to features `[*B, features]`: `Convolutions` and a linear layer.

    Args:
        shape: shape of one image.
        features: width of the output.
    """

    def __init__(self, shape: Sequence[int], features: int = 512) -> None:
        super().__init__()
        self.convolutions, self.features = Convolutions(shape), features
        self.out = nn.Linear(self.convolutions.features, features)
        orthogonal(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, *entries: Tensor) -> Tensor:
        """Return the features `[*B, features]` of the only entry, `[*B, *shape]`."""
        (image,) = entries
        return torch.relu_(self.out(self.convolutions.forward(image)))


def is_image(leaf: Leaf) -> bool:
    """Return whether an entry of observations is an image that `ImageEncoder` takes."""
    if leaf.dtype != np.uint8 or len(leaf.shape) not in (2, 3):
        return False
    _, height, width = channels_first(leaf.shape)
    return min(height, width) >= SMALLEST


def channels_first(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return channels, height and width of images of this shape."""
    a, b, c = shape if len(shape) == 3 else (1, *shape)
    return (c, a, b) if _channels_last(shape) else (a, b, c)


def _channels_last(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and shape[-1] <= shape[0]
