"""Images as features, by three convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from swath.learn.encoders import Encoder
from swath.learn.networks import orthogonal

SMALLEST = 36
"""Least height and width that the convolutions for large images can read."""

_LARGE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
_SMALL = ((16, 3, 1, 1), (32, 3, 2, 1), (32, 3, 2, 1))
"""Channels, kernel, stride and padding of each layer."""


class Convolutions(nn.Module):
    """Three convolutions: images `[*B, *shape]` to features `[*B, features]`.

    Large images get those of Mnih et al., "Human-level control through deep reinforcement learning", 2015; those less
    than 36 pixels high or wide get kernels of 3 pixels.

    Args:
        shape: of one image: `(H, W)`, `(H, W, C)`, or `(C, H, W)` if the first number is less than the last.
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
        """The features `[*B, features]`."""
        batch = images.shape[: images.ndim - len(self.shape)]
        pixels = images.reshape(-1, *self.shape)
        if len(self.shape) == 2:
            pixels = pixels.unsqueeze(1)
        elif _channels_last(self.shape):
            pixels = pixels.movedim(-1, 1)
        features: Tensor = self.layers(pixels.to(torch.float32) * self._scale)
        return features.reshape(*batch, -1)


class ImageEncoder(Encoder):
    """uint8 images `[*B, *shape]` to features `[*B, features]`: `Convolutions`, and a layer behind them.

    Args:
        shape: of one image.
        features: width of the output.
    """

    def __init__(self, shape: Sequence[int], features: int = 512) -> None:
        super().__init__()
        self.convolutions, self.features = Convolutions(shape), features
        self.out = nn.Linear(self.convolutions.features, features)
        orthogonal(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, *entries: Tensor) -> Tensor:
        """The features `[*B, features]` of the only entry, `[*B, *shape]`."""
        (image,) = entries
        return torch.relu_(self.out(self.convolutions.forward(image)))


def channels_first(shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of images of this shape."""
    a, b, c = shape if len(shape) == 3 else (1, *shape)
    return (c, a, b) if _channels_last(shape) else (a, b, c)


def _channels_last(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and shape[-1] <= shape[0]
