"""Images as features, by three convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from swath.learn.encoders import Encoder
from swath.learn.networks import orthogonal

SMALLEST = 36
"""Least height and width that the convolutions can read."""


class ImageEncoder(Encoder):
    """uint8 images `[*B, *shape]` to features `[*B, features]`.

    The convolutions are those of Mnih et al., "Human-level control through deep reinforcement learning", 2015.

    Args:
        shape: of one image: `(H, W)`, `(H, W, C)` if the last is at most 4, else `(C, H, W)`.
        features: width of the output.

    Raises:
        ValueError: an image smaller than `SMALLEST` in height or width.
    """

    def __init__(self, shape: Sequence[int], features: int = 512) -> None:
        super().__init__()
        self.shape, self.features = tuple(shape), features
        channels, height, width = channels_first(self.shape)
        if min(height, width) < SMALLEST:
            raise ValueError(f"image of {height}×{width} pixels: the convolutions need {SMALLEST}×{SMALLEST} at least")
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 8, 4), nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 4, 2), nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(inplace=True), nn.Flatten(),
        )  # fmt: skip
        self.out = nn.Linear(self.convolutions(torch.zeros(1, channels, height, width)).shape[-1], features)
        for layer in (*self.convolutions, self.out):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                orthogonal(layer.weight)
                nn.init.zeros_(cast("Tensor", layer.bias))

    def forward(self, *entries: Tensor) -> Tensor:
        """The features `[*B, features]` of the only entry, `[*B, *shape]`."""
        (image,) = entries
        batch = image.shape[: image.ndim - len(self.shape)]
        pixels = self._as_channels(image.reshape(-1, *self.shape)).to(torch.float32).mul_(1 / 255)
        features: Tensor = torch.relu_(self.out(self.convolutions(pixels)))
        return features.reshape(*batch, self.features)

    def _as_channels(self, images: Tensor) -> Tensor:
        if len(self.shape) == 2:
            return images.unsqueeze(1)
        return images.movedim(-1, 1) if _channels_last(self.shape) else images


def channels_first(shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of images of this shape."""
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    a, b, c = shape
    return (c, a, b) if _channels_last(shape) else (a, b, c)


def _channels_last(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and shape[-1] <= 4
