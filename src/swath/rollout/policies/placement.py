"""Device moves of observations and outputs: nothing at all where nothing moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from swath.rollout.spaces import Leaves


def giver(batch_shape: tuple[int, ...], device: torch.device | None) -> Callable[[Leaves], list[torch.Tensor]]:
    """How observation leaves `[B, …]` become tensors `[*B, …]` on the policy's device."""
    if device is None or device.type == "cpu":
        convert = torch.from_numpy
        if batch_shape:
            return lambda leaves: [*map(convert, leaves)]
        return lambda leaves: [convert(leaf[0]) if leaf.ndim > 1 else convert(leaf).squeeze(0) for leaf in leaves]
    on_cpu = giver(batch_shape, None)
    return lambda leaves: [tensor.to(device) for tensor in on_cpu(leaves)]


def device_of(policy: Any) -> torch.device | None:
    """Where a module's weights are, if that is not the CPU: its inputs must go there."""
    first = next(policy.parameters(), None) if isinstance(policy, torch.nn.Module) else None
    return None if first is None or first.device.type == "cpu" else first.device


def copying(give: Callable[[Leaves], list[torch.Tensor]]) -> Callable[[Leaves], list[torch.Tensor]]:
    """The same for a policy that writes into what it is given: tensors of its own."""
    return lambda leaves: [tensor.clone() for tensor in give(leaves)]


def action_taker(batch_shape: tuple[int, ...], example: Any) -> Callable[[Any], Any]:
    """As `taker`, but always to an array: envs take no others. What numpy lacks becomes float32."""
    if isinstance(example, torch.Tensor) and not _in_numpy(example.dtype):
        take = taker(batch_shape, example)
        return lambda value: take(value).float().numpy()
    return taker(batch_shape, example)


def taker(batch_shape: tuple[int, ...], example: Any) -> Callable[[Any], Any]:
    """How one policy output `[*B, …]` like `example` becomes an array `[B, …]`; a tensor if numpy lacks the dtype."""
    tensor = isinstance(example, torch.Tensor)
    if tensor and not _in_numpy(example.dtype):
        convert: Callable[[Any], Any] = _to_cpu
    elif tensor:
        convert = _on_cpu(example) if example.device.type == "cpu" else _from_device
    else:
        convert = np.asarray
    return convert if batch_shape else (lambda value: convert(value)[None])


def _on_cpu(example: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    """The straight way, unless the policy answers with one of its parameters."""
    return _detached if example.requires_grad else torch.Tensor.numpy


def _detached(value: torch.Tensor) -> Any:
    return value.detach().numpy()


def _from_device(value: torch.Tensor) -> Any:
    return value.detach().cpu().numpy()


def _to_cpu(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu()


def _in_numpy(dtype: torch.dtype) -> bool:
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return False
    return True
