"""Memory of leaves: numpy arrays on the CPU, or tensors of torch on any device.

A host chooses the memory of its observations; a policy's outputs for it are in the same memory, except outputs whose
dtype numpy lacks. Functions that take a leaf return memory of its kind, on its device, and do not wait for the device,
except where they say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from swath.rollout.spaces import Array

_KINDS = {torch.bool: "b", torch.uint8: "u", torch.uint16: "u", torch.uint32: "u", torch.uint64: "u"}


def as_tensor(leaf: Any) -> torch.Tensor:
    """Return a tensor that shares the memory of the leaf."""
    return leaf if isinstance(leaf, torch.Tensor) else torch.from_numpy(leaf)


def as_array(leaf: Any) -> Array:
    """Return an array with the numbers of a leaf; waits for the device of a tensor."""
    array: Array = leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
    return array


def convert(leaf: Any, memory: Any) -> Any:
    """Convert an array to the kind and the device of another leaf."""
    return torch.from_numpy(leaf).to(memory.device) if isinstance(memory, torch.Tensor) else leaf


def empty(leaf: Any, shape: Sequence[int]) -> Any:
    """Return uninitialised memory of this shape, with the dtype of the leaf."""
    if isinstance(leaf, torch.Tensor):
        return leaf.new_empty(shape)
    return np.empty(shape, leaf.dtype)


def unset_flags(leaf: Any, shape: Sequence[int]) -> Any:
    """Return flags of this shape that are not set, in the memory of a leaf."""
    if isinstance(leaf, torch.Tensor):
        return leaf.new_zeros(shape, dtype=torch.bool)
    return np.zeros(shape, np.bool_)


def zeros_like(leaf: Any) -> Any:
    """Return zeros like a leaf."""
    return torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else np.zeros_like(leaf)


def blank_like(leaf: Any) -> Any:
    """Return a leaf like this one, filled with NaN, or with 0 if the dtype has no NaN."""
    if isinstance(leaf, torch.Tensor):
        return torch.full_like(leaf, torch.nan) if leaf.is_floating_point() else torch.zeros_like(leaf)
    return np.full_like(leaf, np.nan) if leaf.dtype.kind in "fc" else np.zeros_like(leaf)


def copy_leaf(leaf: Any) -> Any:
    """Copy a leaf."""
    return leaf.clone(memory_format=torch.contiguous_format) if isinstance(leaf, torch.Tensor) else leaf.copy()


def contiguous(room: Any) -> Any:
    """Return a contiguous copy; torch's transposition is up to twice as quick as numpy's."""
    if isinstance(room, np.ndarray) and room.dtype.kind not in "biufc":  # torch has no objects and no text
        return np.array(room, order="C")
    copy = as_tensor(room).clone(memory_format=torch.contiguous_format)
    return copy if isinstance(room, torch.Tensor) else copy.numpy()


def concatenate(leaves: Sequence[Any]) -> Any:
    """Return the rows of several leaves, one after another."""
    return torch.cat([*leaves]) if isinstance(leaves[0], torch.Tensor) else np.concatenate(leaves)


def equal(leaf: Any, other: Any) -> bool:
    """Tell whether two leaves of the same shape and dtype have the same bits; waits for the device."""
    return as_array(leaf).tobytes() == as_array(other).tobytes()


def kind_of(leaf: Any) -> str:
    """Return the letter of numpy for the kind of a leaf's dtype: b, i, u, f or c."""
    if not isinstance(leaf, torch.Tensor):
        kind: str = leaf.dtype.kind
        return kind
    return "f" if leaf.is_floating_point() else "c" if leaf.is_complex() else _KINDS.get(leaf.dtype, "i")


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the dtype of torch for a dtype of numpy."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def pad_steps(leaf: Any, n_steps: int, value: float) -> Any:
    """Return a leaf `[B, t]` as `[B, T]`, filled up with a value."""
    padded = empty(leaf, (len(leaf), n_steps))
    padded[:, : leaf.shape[1]], padded[:, leaf.shape[1] :] = leaf, value
    return padded


def to_cpu(leaf: Any) -> Any:
    """Return a leaf as an array, or as a tensor on the CPU if numpy lacks its dtype; waits for the device."""
    try:
        return as_array(leaf)
    except TypeError:
        return leaf.cpu()
