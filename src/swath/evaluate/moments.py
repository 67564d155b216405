"""Running statistics that are no module but an object with `mean`, `var` and `count`, as modules that take weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

NAMES = ("mean", "var", "count")


def has_moments(value: Any) -> bool:
    """Whether this is an object, or a mapping of three, with mean, variance and count."""
    if isinstance(value, Mapping):
        return set(value.keys()) == set(NAMES)
    return not isinstance(value, nn.Module | torch.Tensor) and all(hasattr(value, name) for name in NAMES)


def moments_of(value: Any) -> dict[str, torch.Tensor]:
    """Mean, variance and count as tensors of their own, in float64."""
    get = value.__getitem__ if isinstance(value, Mapping) else lambda name: getattr(value, name)
    return {name: _tensor(get(name)) for name in NAMES}


class Moments(nn.Module):
    """A copy of such an object's statistics that weights can be put into, and from there into the object.

    Args:
        holder: the object.
    """

    def __init__(self, holder: Any) -> None:
        super().__init__()
        self._holder = holder
        for name, value in moments_of(holder).items():
            self.register_buffer(name, value)

    def put_back(self) -> None:
        """The object has what is here, in its own types."""
        for name in NAMES:
            value, before = getattr(self, name), getattr(self._holder, name)
            setattr(self._holder, name, _as_before(value, before))


def _tensor(value: Any) -> torch.Tensor:
    held = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    return torch.from_numpy(np.array(held, dtype=np.float64))


def _as_before(value: torch.Tensor, before: Any) -> Any:
    if isinstance(before, np.ndarray):
        return value.numpy().astype(before.dtype).copy()
    if isinstance(before, torch.Tensor):
        return value.to(before.dtype).to(before.device)
    return type(before)(value.item())
