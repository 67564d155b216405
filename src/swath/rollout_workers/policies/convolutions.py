"""Images as features, for the default network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from swath.learn.images import SMALLEST
from swath.learn.networks import orthogonal

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
