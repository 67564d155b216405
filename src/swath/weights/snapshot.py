"""Copies of weights that travel well, and how they get into a module.

    module | TensorDict | dict ──take: checked, one copy──▶ Snapshot ──apply: in place, whole──▶ module
                                                            one flat buffer per dtype

A snapshot has nothing of the module but values: it is detached, on the CPU, and pickles as a few numpy arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from swath.weights.manifest import Manifest
from swath.weights.names import Flat, held_by, is_extra, owner

Bytes: TypeAlias = npt.NDArray[np.uint8]


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


@dataclass(frozen=True)
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


def take(source: Any, manifest: Manifest) -> Snapshot | None:
    """Copy weights for the model of a manifest, in its dtypes; `None` if it has none. Nothing is read later.

    Args:
        source: a module, a TensorDict, or a mapping with string keys, nested or dotted; only read, on any device.
        manifest: of the model that gets them.

    Raises:
        TypeError: not weights.
        KeyError: a parameter is missing or a name unknown; all are listed.
        ValueError: another shape, or a dtype that is not cast.
    """
    return None if manifest.empty else copied(manifest.fitted(source), manifest)


def copied(weights: Flat, manifest: Manifest) -> Snapshot:
    """A snapshot of weights that fit the manifest, of all or of some."""
    sizes: dict[torch.dtype, int] = {}
    places: dict[str, Place] = {}
    for name in weights:
        if not is_extra(name):
            wanted = manifest.weights[name]
            places[name] = Place(wanted.dtype, sizes.get(wanted.dtype, 0), wanted.shape)
            sizes[wanted.dtype] = places[name].start + prod(wanted.shape)
    buffers = {dtype: np.empty(size * dtype.itemsize, np.uint8) for dtype, size in sizes.items()}
    extras = {name: _own(value) for name, value in weights.items() if is_extra(name)}
    snapshot = Snapshot(places, buffers, extras)
    for name, view in snapshot.tensors().items():
        view.copy_(weights[name])
    return snapshot


def apply(snapshot: Snapshot, module: nn.Module) -> None:
    """Copy the values into a module's own tensors; parameters stay the objects they are.

    Raises:
        KeyError: the module has no such weight.
        ValueError: it has another shape there. In both cases nothing has changed.
    """
    fitting(snapshot, module)()


def fitting(snapshot: Snapshot, module: nn.Module) -> Callable[[], None]:
    """Check that a snapshot fits a module; the function that applies it, while the snapshot's memory is there.

    Raises:
        KeyError: the module has no such weight.
        ValueError: it has another shape there.
    """
    held = held_by(module)
    pairs = [(_target(held, name, value), value) for name, value in snapshot.tensors().items()]
    extras = [(_part(module, name), value) for name, value in snapshot.extras.items()]

    def copy_in() -> None:
        with torch.no_grad():
            for target, value in pairs:
                target.copy_(value)
        for part, value in extras:
            part.set_extra_state(_own(value))

    return copy_in


def _part(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(owner(name))
    except AttributeError as error:
        raise KeyError(f"the model has no {name}: {error}; nothing was changed") from None


def _target(held: Flat, name: str, value: torch.Tensor) -> torch.Tensor:
    if name not in held:
        raise KeyError(f"the model has no weight {name}; it has {sorted(held)}; nothing was changed")
    target: torch.Tensor = held[name]
    if target.shape != value.shape:
        raise ValueError(
            f"weight {name} has shape {tuple(value.shape)}, the model's has {tuple(target.shape)}; nothing was changed"
        )
    return target


def _own(extra: Any) -> Any:
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
