"""Read single entries of a batch, and build the same entries anew on another batch shape.

Inner TensorDicts keep the batch dimensions of their own (agents), non-tensor values stay non-tensor values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_leaf_nontensor,
    is_non_tensor,
    is_tensor_collection,
)

from swath.keys import Key

Tensor: TypeAlias = torch.Tensor
Make: TypeAlias = Callable[[Key, Any], Any]


def per_frame(td: TensorDictBase, key: Key) -> Tensor:
    """The entry with one value per frame, as `[*B, T]`; a trailing dimension of one is dropped.

    Raises:
        KeyError: there is no such entry.
        RuntimeError: it holds more than one value per frame.
    """
    entry: Tensor = td[key]
    if entry.shape == td.batch_size:
        return entry
    if entry.shape == (*td.batch_size, 1):
        return entry.squeeze(-1)
    want = list(td.batch_size)
    raise RuntimeError(
        f"entry {key!r} has shape {list(entry.shape)}; one value per frame, {want} or {[*want, 1]}, fits"
    )


def per_frame_or_none(td: TensorDictBase, key: Key) -> Tensor | None:
    """As `per_frame`, `None` where there is no such entry."""
    return per_frame(td, key) if td.get(key, None) is not None else None


def entries(td: TensorDictBase) -> Iterator[tuple[Key, Any]]:
    """All leaves with their keys, the non-tensor ones too.

    Raises:
        ValueError: an entry changes its shape from step to step, so that it is no one tensor.
    """
    for key in td.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        yield key, _one_tensor(td, key)


def _one_tensor(td: TensorDictBase, key: Key) -> Any:
    try:
        return td.get(key)
    except RuntimeError as error:
        raise ValueError(f"entry {key!r} changes its shape from frame to frame; pad it in the env first") from error


def in_rows(frames: Tensor, shape: Sequence[int]) -> Tensor:
    """`[N, …]`, contiguous, seen as `[*shape, …]`."""
    return frames.view(*shape, *frames.shape[1:])


def listed(entry: Any) -> list[Any]:
    """The values of a non-tensor entry, one per frame, in the order of its flattened batch."""
    if isinstance(entry, NonTensorData):
        return [entry.data] * entry.numel()
    flat: list[Any] = entry.tolist()
    for _ in entry.batch_size[1:]:
        flat = [value for part in flat for value in part]
    return flat


def non_tensor(values: Sequence[Any], shape: Sequence[int]) -> Any:
    """A non-tensor entry `[*shape]` of these values, the inverse of `listed`."""
    parts: list[Any] = [NonTensorData(value) for value in values]
    for size in reversed(shape):
        parts = [NonTensorStack(*parts[at : at + size]) for at in range(0, len(parts), size)]
    return parts[0]


def spread(values: Sequence[Any], places: Sequence[int], shape: Sequence[int]) -> Any:
    """A non-tensor entry `[*shape]` with value `i` at the flat place `places[i]` and None elsewhere."""
    filled: list[Any] = [None] * math.prod(shape)
    for place, value in zip(places, values, strict=True):
        filled[place] = value
    return non_tensor(filled, shape)


def rebuild(like: TensorDictBase, shape: Sequence[int], names: Sequence[str | None], make: Make) -> TensorDict:
    """A TensorDict `[*shape]` with the keys of `like`, each entry made by `make(key, entry)`."""
    out = TensorDict({}, batch_size=torch.Size(shape), device=like.device)
    for key, entry in entries(like):
        out.set(key, make(key, entry))
    out.names = list(names)
    _keep_inner_batch(out, like)
    return out


def _keep_inner_batch(out: TensorDict, like: TensorDictBase) -> None:
    """Give the inner TensorDicts of `out` the further batch dimensions that those of `like` have."""
    for key, inner in like.items(include_nested=True):
        if (
            is_tensor_collection(inner)
            and not is_non_tensor(inner)
            and inner.ndim > like.ndim
            and key in out.keys(include_nested=True)
        ):
            out.get(key).batch_size = torch.Size((*out.batch_size, *inner.batch_size[like.ndim :]))
