"""Values nested in dicts and tuples, as the values of Dict and Tuple spaces; their leaves are arrays, or anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space

from swath.rollout.spaces import Array, Path, build_value, plain_leaves

Leaf: TypeAlias = Any
ARRAYS = (np.ndarray, torch.Tensor)


def map_nest(function: Callable[..., Any], nest: Any, *others: Any) -> Any:
    """Return `function(leaf, *leaves_of_the_others)` for each leaf of `nest`, in a nest of the same structure.

    Any value but a dict or tuple is a leaf. Named tuples stay named tuples, dicts of other types become plain ones.

    Args:
        function: called once per leaf.
        nest: has the structure.
        others: nests of that structure; in the place of a leaf may be another nest.

    Raises:
        ValueError: one of the others is nested differently.
    """
    if isinstance(nest, dict):
        for other in others:
            if not isinstance(other, dict) or other.keys() != nest.keys():
                raise ValueError(f"nested differently: {sorted(map(str, nest))}, but {other!r:.60}")
        return {key: map_nest(function, part, *(other[key] for other in others)) for key, part in nest.items()}
    if isinstance(nest, tuple):
        parts = [map_nest(function, *items) for items in zip(nest, *others, strict=True)]
        return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
    return function(nest, *others)


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """Yield each leaf with its path; a list is a leaf: it stands for an array or for rows of objects."""
    if not isinstance(value, dict | tuple):
        yield path, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(part, (*path, key))


def leaves_of(nest: Any, template: Any = None) -> list[Any]:
    """Return the leaves of a nest in order; in the order of the template, if there is one."""
    structure = nest if template is None else template
    if not isinstance(structure, dict | tuple):
        return [nest]
    values: list[Any] = []
    map_nest(lambda _, leaf: values.append(leaf), structure, nest)
    return values


def nest_of(template: Any, leaves: Iterable[Any]) -> Any:
    """Arrange leaves in a nest of the template's structure."""
    remaining = iter(leaves)
    return map_nest(lambda _: next(remaining), template) if isinstance(template, dict | tuple) else next(remaining)


def template_of(space: Space[Any]) -> Any:
    """Return a nest of the structure of a space's values, with the spaces of its leaves."""
    return build_value(space, (leaf.space for leaf in plain_leaves(space, "")))


def rows_of(leaf: Leaf) -> int | None:
    """Return the length of the leading dimension; None where there is none."""
    if isinstance(leaf, ARRAYS):
        return int(leaf.shape[0]) if leaf.ndim else None
    return len(leaf) if isinstance(leaf, list) else None


def holds_objects(leaf: Leaf) -> bool:
    """Return whether rows are Python objects or text, which no tensor can hold."""
    return isinstance(leaf, list) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OUS")


def tensor_of(value: Any) -> torch.Tensor:
    """Return an array, a tensor or numbers as a tensor without history, in the same memory where possible.

    It is copied where it is read-only or runs backwards.
    """
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.asarray(value)
    shared = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if shared else array.copy())


def tensor_on(device: torch.device, value: Any, *, pin: bool = False) -> torch.Tensor:
    """Move a value to a device, float64 as float32; `pin` copies to CUDA through page-locked memory."""
    tensor, pin = tensor_of(value), pin and device.type == "cuda"
    tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
    tensor = tensor.pin_memory() if pin and tensor.device.type == "cpu" else tensor
    return tensor.to(device, non_blocking=pin)


def as_array(leaf: Leaf) -> Array:
    """Return the leaf as a NumPy array in the host's memory; of a dtype that NumPy lacks (bfloat16), as float32."""
    if type(leaf) is np.ndarray:
        return leaf
    if not isinstance(leaf, torch.Tensor):
        return np.asarray(leaf)
    try:
        return np.asarray(leaf.numpy(force=True))
    except TypeError:
        return np.asarray(leaf.float().numpy(force=True))


def object_array(rows: Sequence[Any]) -> Array:
    """Return an array with one object per row."""
    return np.fromiter(rows, object, len(rows))


def take(leaf: Leaf, rows: slice | Array) -> Leaf:
    """Return rows of a leaf: a view for a slice, copies for an index. A leaf without rows is returned itself.

    Where the index is negative, rows are zeros, None among objects.
    """
    if rows_of(leaf) is None:
        return leaf
    if isinstance(rows, slice):
        return leaf[rows]
    if isinstance(leaf, list):
        return [leaf[i] if i >= 0 else None for i in rows]
    missing = rows < 0
    if not missing.any():
        return leaf[rows]
    taken_rows = leaf[np.maximum(rows, 0)]
    zero: Any = 0 if isinstance(leaf, torch.Tensor) else leaf.dtype.type()
    taken_rows[missing] = None if leaf.dtype == object else zero
    return taken_rows


def concatenate(*parts: Leaf, axis: int = 0) -> Leaf:
    """Concatenate leaves to a new one; object rows may be lists and arrays.

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
