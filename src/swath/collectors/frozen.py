"""What a worker elsewhere is built of, as it was when the collector was built: later changes never reach it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import nn


@dataclass(frozen=True)
class Frozen:
    """A value as bytes; called, it gives a copy, so that it may stand where a callable is wanted.

    Attributes:
        data: what cloudpickle made of it.
    """

    data: bytes

    @classmethod
    def of(cls, value: Any, what: str, instead: str) -> Frozen:
        """The value as it is now; weights of a module on another device travel by the CPU.

        Args:
            value: what is frozen.
            what: its name in messages.
            instead: what to pass if it cannot be pickled.

        Raises:
            TypeError: it cannot be pickled.
        """
        try:
            return cls(cloudpickle.dumps(_on_cpu(value)))
        except Exception as error:
            raise TypeError(f"{what} {type(value).__name__} cannot be pickled ({error}); pass {instead}") from error

    def __call__(self) -> Any:
        """A copy of it."""
        return pickle.loads(self.data)  # noqa: S301  it was made here


def thawed(value: Any) -> Any:
    """A copy of what was frozen; anything else as it is."""
    return value() if isinstance(value, Frozen) else value


def _on_cpu(value: Any) -> Any:
    if not isinstance(value, nn.Module):
        return value
    cpu = torch.device("cpu")
    tensors = (tensor for tensor in value.state_dict().values() if isinstance(tensor, torch.Tensor))
    if all(tensor.device == cpu for tensor in tensors):
        return value
    return copy.deepcopy(value).to(cpu)
