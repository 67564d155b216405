"""What weights are called, copies of them that travel well, and how these get into a model.

    module | TensorDict | dict ──▶ tensors by name ──copied──▶ Snapshot ──fitting: checked, in place, whole──▶ model
                                                               one flat buffer per dtype

Nested keys and dotted names are the same. A snapshot has nothing of a module but values: it is detached, on the
CPU, and pickles as a few numpy arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import nn

Bytes: TypeAlias = npt.NDArray[np.uint8]

Flat = dict[str, Any]
"""Tensors by their dotted names; what `get_extra_state()` gave under names that end in `_extra_state`."""

POLICY = "policy"
"""The id of the policy among the models that take weights."""

EXTRA_STATE = "__extra_state__"
"""What extra state is called where weights are a TensorDict, beside the weights of its module."""

_EXTRA = "_extra_state"


class Entry(NamedTuple):
    """A weight, or extra state, and where it is kept.

    Attributes:
        holder: a TensorDict, a mapping, or the module itself.
        key: its name there.
        value: what is there.
    """

    holder: Any
    key: str
    value: Any

    def put_extra(self, state: Any) -> None:
        """Put other extra state in its place."""
        if isinstance(self.holder, nn.Module):
            self.holder.get_submodule(owner(self.key)).set_extra_state(state)
        elif isinstance(self.holder, TensorDictBase):
            self.holder.set_non_tensor(self.key, state)
        else:
            self.holder[self.key] = state


def entries(source: Any) -> dict[str, Entry]:
    """All weights by name, the tensors themselves, of a module, a TensorDict, or a mapping, nested or dotted.

    Raises:
        TypeError: anything else, or with something else in it.
    """
    if isinstance(source, nn.Module):
        held: Flat = source.state_dict(keep_vars=True)
        buffers = source.named_buffers(remove_duplicate=False)
        held |= {name: buffer for name, buffer in buffers if name not in held}
        return {name: Entry(source, name, value) for name, value in held.items()}
    if isinstance(source, Snapshot):
        source = source.weights()
    if isinstance(source, TensorDictBase | Mapping):
        return dict(_walk(source, ""))
    raise TypeError(f"weights are of type {type(source).__name__}; pass a module, a TensorDict, or a dict of tensors")


def flat_weights(source: Any) -> Flat:
    """Names and tensors, without gradients; see `entries`."""
    values = {name: entry.value for name, entry in entries(source).items()}
    return {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


def renew(target: Any) -> None:
    """Put copies in the place of all tensors, so that who holds the old ones sees no further change."""
    for name, (holder, key, value) in entries(target).items():
        if isinstance(holder, nn.Module) and not is_extra(name):
            value.data = value.data.clone()
        elif not is_extra(name):
            holder[key] = value.detach().clone()


def is_extra(name: str) -> bool:
    """Whether it is a module's extra state."""
    return name.rpartition(".")[2] == _EXTRA


def owner(name: str) -> str:
    """Path of the submodule that a weight belongs to; empty for the module itself."""
    return name.rpartition(".")[0]


class Place(NamedTuple):
    """Where a tensor is in the flat buffer of its dtype.

    Attributes:
        dtype: which buffer.
        start: in elements.
        shape: of the tensor.
    """

    dtype: torch.dtype
    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The weights of one model at one moment.

    Attributes:
        places: of each tensor, by name; shared parameters once.
        buffers: bytes, one buffer per dtype.
        extras: what `get_extra_state()` gave, by name.
    """

    places: Mapping[str, Place]
    buffers: Mapping[torch.dtype, Bytes]
    extras: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(buffer.nbytes for buffer in self.buffers.values())

    def weights(self) -> Flat:
        """Tensors and extra state by name: weights as they can be passed on; to be read only."""
        return {**self.tensors(), **self.extras}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Views of the buffers, to be read only."""
        flat = {dtype: _flat(buffer, dtype) for dtype, buffer in self.buffers.items()}
        return {
            name: flat[place.dtype][place.start : place.start + prod(place.shape)].view(place.shape)
            for name, place in self.places.items()
        }

    def equals(self, other: Snapshot) -> bool:
        """Whether the other has the same names and values; false where there is extra state, which is not compared."""
        if self.extras or other.extras or self.places != other.places:
            return False
        return all(np.array_equal(buffer, other.buffers[dtype]) for dtype, buffer in self.buffers.items())


def fitting(snapshot: Snapshot, model: Any) -> Callable[[], None]:
    """Check that a snapshot fits; the function that applies it, while the snapshot's memory is there.

    Args:
        snapshot: of all of its weights, or of some.
        model: a module, a TensorDict or a dict; its tensors stay the objects they are.

    Raises:
        KeyError: the model has no such weight.
        ValueError: it has another shape there.
    """
    held = entries(model)
    missing = sorted({*snapshot.places, *snapshot.extras} - set(held))
    if missing:
        raise KeyError(f"the model has no {', '.join(missing)}; it has {sorted(held)}; nothing was changed")
    for name, place in snapshot.places.items():
        if place.shape != (shape := tuple(held[name].value.shape)):
            raise ValueError(f"weight {name} has shape {place.shape}, the model's has {shape}; nothing was changed")

    def copy_in() -> None:
        with torch.no_grad():
            for name, value in snapshot.tensors().items():
                held[name].value.copy_(value)
        for name, value in snapshot.extras.items():
            held[name].put_extra(own_extra(value))

    return copy_in


def _walk(source: Any, prefix: str) -> Iterator[tuple[str, Entry]]:
    for key, value in source.items():
        if not isinstance(key, str):
            raise TypeError(f"weights have the key {key!r}; names of weights are strings")
        if key == EXTRA_STATE:  # a TensorDict keeps dicts as TensorDicts
            extra = value.data if is_non_tensor(value) else value
            yield prefix + _EXTRA, Entry(source, key, extra.to_dict() if isinstance(extra, TensorDictBase) else extra)
        elif isinstance(value, torch.Tensor) or is_extra(key):
            yield prefix + key, Entry(source, key, value)
        elif isinstance(value, TensorDictBase | Mapping):
            yield from _walk(value, f"{prefix}{key}.")
        else:
            raise TypeError(f"weight {prefix}{key} is of type {type(value).__name__}; it must be a tensor")


def own_extra(extra: Any) -> Any:
    """A copy of extra state."""
    return extra.detach().cpu().clone() if isinstance(extra, torch.Tensor) else copy.deepcopy(extra)


def _flat(buffer: Bytes, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the buffer's memory, also where that is read-only, which torch would warn of."""
    if not buffer.size:
        return torch.empty(0, dtype=dtype)
    return torch.from_numpy(buffer if buffer.flags.writeable else np.asarray(_Reread(buffer))).view(dtype)


class _Reread:
    """The same memory, said to be writable; keeps it alive."""

    def __init__(self, buffer: Bytes) -> None:
        self._buffer = buffer
        address, _ = buffer.__array_interface__["data"]
        self.__array_interface__ = {**buffer.__array_interface__, "data": (address, False)}
