"""Gradients of a loss: made, averaged over ranks, bounded, checked, used.

parameters ──loss──▶ gradients ──mean over ranks──▶ ──bound──▶ arrays that travel ──▶ an optimiser's step
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from swath.rollout_workers.batches.leaves import tensor_of
from swath.rollout_workers.policies.ranks import meet

Gradients: TypeAlias = list[Tensor | None]
"""One per parameter of a model, in its order; None where the loss does not depend on it."""


def bound(gradients: Gradients, limit: float | None, by: str) -> tuple[Gradients, float]:
    """Gradients within a limit, and the norm of all of them before.

    Args:
        gradients: as they are.
        limit: None: none.
        by: "global_norm" shortens all together to this norm, "norm" each to it, "value" clips each number.

    Raises:
        FloatingPointError: one is NaN or infinite.
    """
    present = [gradient for gradient in gradients if gradient is not None]
    norms = torch.stack([gradient.norm() for gradient in present]) if present else torch.zeros(1)
    norm = float(norms.norm())
    if not np.isfinite(norm):
        raise FloatingPointError(
            f"the gradients' norm is {norm}, the weights were left as they are; look for rewards and observations that "
            "are not finite, or lower lr"
        )
    if limit is None:
        return gradients, norm
    if by == "value":
        return [None if gradient is None else gradient.clamp(-limit, limit) for gradient in gradients], norm
    lengths = norms if by == "norm" else norms.norm().expand_as(norms)
    factors = iter((limit / lengths.clamp(min=limit)).unbind())
    return [None if gradient is None else gradient * next(factors) for gradient in gradients], norm


def averaged(gradients: Gradients, parameters: Sequence[nn.Parameter]) -> Gradients:
    """The means over all ranks of the process group, which must call this together.

    Where only some ranks have a gradient, the others count as zero.

    Raises:
        WorkerLate: other ranks have not come in time.
    """
    parts = [
        (torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1)
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]
    given = torch.tensor([float(gradient is not None) for gradient in gradients])
    flat = torch.cat([*parts, given.to(parts[0])])
    meet()
    torch.distributed.all_reduce(flat)
    *sums, counts = torch.split(flat, [*(parameter.numel() for parameter in parameters), len(parameters)])
    ranks = torch.distributed.get_world_size()
    return [
        (total / ranks).to(parameter).reshape(parameter.shape) if count else None
        for total, parameter, count in zip(sums, parameters, counts.tolist(), strict=True)
    ]


def fitted(gradients: Iterable[Any], parameters: Sequence[nn.Parameter]) -> Gradients:
    """Gradients as they came from elsewhere, as tensors beside the parameters.

    Raises:
        ValueError: another number of them, or another shape.
        FloatingPointError: one is NaN or infinite.
    """
    given = list(gradients)
    if len(given) != len(parameters):
        raise ValueError(f"{len(given)} gradients for {len(parameters)} parameters; give one each, None where none is")
    tensors = [None if gradient is None else tensor_of(gradient) for gradient in given]
    for i, (tensor, parameter) in enumerate(zip(tensors, parameters, strict=True)):
        if tensor is not None and tensor.shape != parameter.shape:
            raise ValueError(f"gradient {i} has shape {list(tensor.shape)}, its parameter {list(parameter.shape)}")
        tensors[i] = None if tensor is None else tensor.to(parameter)
    return bound(tensors, None, "global_norm")[0]
