"""The network that a policy has unless somebody writes one.

```
not shared    obs ──▶ [convolutions] ──▶ hidden layers ──▶ dist_inputs        shared    obs ──▶ … ──▶ hidden layers ─┬▶
              obs ──▶ [convolutions] ──▶ hidden layers ──▶ value                           dist_inputs and value  ◀──┘
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from swath.learn.encoders import VectorEncoder
from swath.learn.images import SMALLEST
from swath.learn.networks import MLP, orthogonal
from swath.rollout.spaces import plain_leaves

_LARGE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
_SMALL = ((16, 3, 1, 1), (32, 3, 2, 1), (32, 3, 2, 1))
"""Channels, kernel, stride and padding of each layer."""


class Convolutions(nn.Module):
    """Three convolutions: images `[B, *shape]` to features `[B, features]`.

    Large images get those of Mnih et al., "Human-level control through deep reinforcement learning", 2015; those less
    than 36 pixels high or wide get kernels of 3 pixels.

    Args:
        shape: of one image, `(H, W, C)`; `(C, H, W)` if the first number is the smaller of the outer two.
        dtype: uint8 is divided by 255.
    """

    def __init__(self, shape: Sequence[int], dtype: np.dtype[np.generic]) -> None:
        super().__init__()
        self._channels_last = shape[-1] <= shape[0]
        channels, height, width = (shape[2], *shape[:2]) if self._channels_last else shape
        self._scale = 1 / 255 if dtype == np.uint8 else 1.0
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
        """The features `[B, features]`."""
        pixels = images.movedim(-1, 1) if self._channels_last else images
        features: Tensor = self.layers(pixels.to(torch.float32) * self._scale)
        return features


_POLICY_GAIN = 0.01


class DefaultNetwork(nn.Module):
    """Observations `[n, …]` to `dist_inputs` `[n, num_outputs]`, and values `[n]` if it has them.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple; a Box of rank 3 is an image.
        num_outputs: width of `dist_inputs`.
        model: the setting `model`.
        with_value: whether there are values.

    Raises:
        TypeError: observations of another kind.
        ValueError: `free_log_std` with a number of outputs that is not even.
    """

    def __init__(
        self, observation_space: Space[Any], num_outputs: int, model: Mapping[str, Any], *, with_value: bool
    ) -> None:
        super().__init__()
        self._with_value, self._shared = with_value, with_value and model["vf_share_layers"]
        self.log_std = nn.Parameter(torch.zeros(num_outputs // 2)) if model["free_log_std"] else None
        outputs = num_outputs if self.log_std is None else num_outputs // 2
        self.policy = Tower(observation_space, outputs + self._shared, model, _POLICY_GAIN)
        self.critic = Tower(observation_space, 1, model, 1.0) if with_value and not self._shared else None
        if self._shared:
            with torch.no_grad():
                orthogonal(self.policy.layers.last_layer[0][-1:], 1.0)

    def forward(self, obs: Any, *, quick: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """`dist_inputs`, or `(dist_inputs, value)`.

        Args:
            obs: observations `[n, …]`.
            quick: as in `swath.learn.networks.MLP`.
        """
        out, critic = self.policy.forward(obs, quick=quick), self.critic
        if self._shared:
            return self._complete(out[..., :-1]), out[..., -1]
        out = self._complete(out)
        return out if critic is None else (out, critic.forward(obs, quick=quick)[..., -1])

    def value(self, obs: Any, *, quick: bool = False) -> Tensor:
        """The values `[n]` alone."""
        critic = self.policy if self.critic is None else self.critic
        return critic.forward(obs, quick=quick)[..., -1]

    def _complete(self, out: Tensor) -> Tensor:
        log_std = self.log_std
        return out if log_std is None else torch.cat([out, log_std.expand_as(out)], -1)


class Tower(nn.Module):
    """Hidden layers behind what makes numbers of observations."""

    def __init__(self, space: Space[Any], outputs: int, model: Mapping[str, Any], gain: float) -> None:
        super().__init__()
        self._read, features = _reading(space)
        sizes = (features, *model["fcnet_hiddens"], outputs)
        self.layers = MLP(sizes, activation=model["fcnet_activation"], out_gain=gain)

    def forward(self, obs: Any, *, quick: bool = False) -> Tensor:
        """What the last layer gives, `[n, outputs]`."""
        return self.layers.forward(obs if self._read is None else self._read.forward(obs), quick=quick)


class _Entries(nn.Module):
    """Observations of any served space as vectors."""

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        leaves = plain_leaves(space, "observation")
        self._paths = [leaf.path for leaf in leaves]
        self._encoder = VectorEncoder(leaves, standardise=False)
        self.features = self._encoder.features

    def forward(self, obs: Any) -> Tensor:
        return self._encoder.forward(*(reduce(getitem, path, obs) for path in self._paths))


def _reading(space: Space[Any]) -> tuple[Convolutions | _Entries | None, int]:
    """What makes vectors of observations, None if they are vectors; and how long these are."""
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        convolutions = Convolutions(space.shape, np.dtype(space.dtype))
        return convolutions, convolutions.features
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating):
        return None, space.shape[0]
    entries = _Entries(space)
    return entries, entries.features
