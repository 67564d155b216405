"""A network's weights as arrays, and back, all or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from swath.rollout_workers.batches.leaves import array_of, tensor_of


def arrays_of(model: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of all parameters and persistent buffers by name, in dtypes that NumPy has: bfloat16 becomes float32."""
    return {name: np.array(array_of(tensor.detach())) for name, tensor in model.state_dict().items()}


def plan(model: nn.Module, weights: Mapping[str, Any]) -> Callable[[], None]:
    """Check weights; what copies them into the model, which then cannot fail.

    Args:
        model: gets them.
        weights: arrays or tensors by name.

    Raises:
        ValueError: names missing or unknown, or other shapes; the message lists them all.
    """
    held = model.state_dict()
    given = {name: tensor_of(value) for name, value in weights.items()}
    wrong = [*_names("missing", held.keys() - given.keys()), *_names("unknown", given.keys() - held.keys())]
    wrong += [
        f"{name} has shape {list(given[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in held.items()
        if name in given and given[name].shape != tensor.shape
    ]
    if wrong:
        raise ValueError(f"weights that do not fit, none was taken over: {'; '.join(wrong)}")

    def copy_in() -> None:
        with torch.no_grad():
            for name, tensor in held.items():
                tensor.copy_(given[name])

    return copy_in


def _names(what: str, names: set[str]) -> list[str]:
    return [f"{what} {', '.join(sorted(names))}"] if names else []
