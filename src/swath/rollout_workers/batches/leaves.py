"""Dicts and tuples inside columns: their leaves are arrays, tensors, or what a user put there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from swath.rollout_workers.nests import map_nest

Array: TypeAlias = npt.NDArray[Any]
Leaf: TypeAlias = Any
Path: TypeAlias = tuple[Any, ...]


def is_nest(value: Any) -> bool:
    """Whether the value holds others; lists do not count, they stand for arrays or rows of objects."""
    return isinstance(value, dict | tuple)


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """Each leaf with the way to it."""
    if not is_nest(value):
        yield path, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(part, (*path, key))


def map_together(function: Callable[[list[Leaf]], Any], values: list[Any]) -> Any:
    """One nest made of several of the same structure: `function([leaf, …])` in place of each leaf.

    Raises:
        ValueError: the structures differ.
    """
    structures = {frozenset(path for path, _ in leaves(value)) for value in values}
    if len(structures) > 1:
        raise ValueError(f"nested differently: {', '.join(sorted(str(sorted(map(str, each))) for each in structures))}")
    return map_nest(lambda *those: function(list(those)), *values)


def is_array(leaf: Leaf) -> bool:
    """Whether it is a NumPy array or a tensor."""
    return isinstance(leaf, np.ndarray | torch.Tensor)


def rows_of(leaf: Leaf) -> int | None:
    """Length of the leading dimension; None where there is none."""
    if is_array(leaf):
        return int(leaf.shape[0]) if leaf.ndim else None
    return len(leaf) if isinstance(leaf, list) else None


def holds_objects(leaf: Leaf) -> bool:
    """Whether rows are Python objects or text, which no tensor can hold."""
    return isinstance(leaf, list) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OUS")


def as_tensor(array: Array) -> torch.Tensor:
    """The array as a tensor in the same memory; copied where it is read-only or runs backwards."""
    if array.flags.writeable and all(stride >= 0 for stride in array.strides):
        return torch.from_numpy(array)
    return torch.from_numpy(array.copy())


def tensor_of(value: Any) -> torch.Tensor:
    """An array, a tensor or numbers as a tensor without history, in the same memory where that can be."""
    return value.detach() if isinstance(value, torch.Tensor) else as_tensor(np.asarray(value))


def object_array(rows: Sequence[Any]) -> Array:
    """One object per row, whatever the objects are."""
    array = np.empty(len(rows), dtype=object)
    for i, row in enumerate(rows):
        array[i] = row
    return array


def as_array(leaf: Leaf) -> Array:
    """The leaf as a NumPy array in the host's memory."""
    return array_of(leaf.detach()) if isinstance(leaf, torch.Tensor) else np.asarray(leaf)


def array_of(tensor: torch.Tensor) -> Array:
    """The tensor as an array; of a dtype that NumPy has not (bfloat16, float8), as float32, which holds it exactly."""
    here = tensor.cpu()
    try:
        return np.asarray(here.numpy())
    except TypeError:
        return np.asarray(here.to(torch.float32).numpy())


def take(leaf: Leaf, index: Array) -> Leaf:
    """Rows of a leaf in the order of an index, copied."""
    if isinstance(leaf, list):
        return [leaf[i] for i in index]
    return leaf[torch.as_tensor(index, device=leaf.device)] if isinstance(leaf, torch.Tensor) else leaf[index]


def joined(parts: list[Leaf], axis: int = 0) -> Leaf:
    """Leaves one behind another, as a new one; object rows may be lists and arrays.

    Raises:
        ValueError: they are neither arrays, nor tensors, nor lists, or of several kinds or shapes.
    """
    if all(isinstance(part, torch.Tensor) for part in parts):
        return torch.cat(parts, dim=axis)
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts, axis=axis)
    if all(holds_objects(part) for part in parts):
        return [row for part in parts for row in part]
    raise ValueError(f"cannot be joined: {', '.join(sorted({type(part).__name__ for part in parts}))}")


def blank(leaf: Leaf, n_rows: int) -> Leaf:
    """So many rows of zeros like those of the leaf; None in place of objects."""
    if isinstance(leaf, list):
        return [None] * n_rows
    if isinstance(leaf, torch.Tensor):
        return leaf.new_zeros((n_rows, *leaf.shape[1:]))
    if leaf.dtype.kind == "O":
        return np.full((n_rows, *leaf.shape[1:]), None, dtype=object)
    return np.zeros((n_rows, *leaf.shape[1:]), dtype=leaf.dtype)
