"""Names of weights, snapshots of weights for other processes, and copies back into a model.

    module | TensorDict | dict ──▶ tensors by name ──copied──▶ Snapshot ──plan_copy: checked, in place──▶ model
                                                               one flat buffer per dtype

Nested keys and dotted names are the same. A snapshot holds values of a module and nothing else: it is detached, on the
CPU, and pickles as a few numpy arrays.

    worker                                   caller
    Manifest.of(module) ──(travels)──▶ take_snapshot(source, manifest): a snapshot that fits, or an error

Contract: names and shapes are checked before anything is changed; a missing parameter or an unknown name is a
`KeyError` that lists them, another shape a `ValueError`; buffers and extra state may be missing; prefixes of `module`
are added or removed if exactly one number of them fits; floating dtypes are cast.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

Bytes: TypeAlias = npt.NDArray[np.uint8]

Flat = dict[str, Any]
"""Tensors by their dotted names, and results of `get_extra_state()` under names that end in `_extra_state`."""

POLICY = "policy"
"""The id of the policy among the models that take weights."""

EXTRA_STATE = "__extra_state__"
"""The key of a module's extra state in a TensorDict of weights."""

_EXTRA = "_extra_state"


class Entry(NamedTuple):
    """A weight, or extra state, and its container.

    Attributes:
        holder: a TensorDict, a mapping, or the module itself.
        key: its name there.
        value: the tensor or the extra state.
    """

    holder: Any
    key: str
    value: Any

    def put_extra(self, state: Any) -> None:
        """Replace the extra state."""
        if isinstance(self.holder, nn.Module):
            self.holder.get_submodule(module_path(self.key)).set_extra_state(state)
        elif isinstance(self.holder, TensorDictBase):
            self.holder.set_non_tensor(self.key, state)
        else:
            self.holder[self.key] = state


def entries(source: Any) -> dict[str, Entry]:
    """Return all weights of a module, a TensorDict, or a mapping, nested or dotted, by name; tensors are not copied.

    Raises:
        TypeError: another source, or a value in it that is no weight.
        ValueError: a module with lazy layers that are not initialised.
    """
    if isinstance(source, nn.Module):
        require_initialized(source)
        values: Flat = source.state_dict(keep_vars=True)
        buffers = source.named_buffers(remove_duplicate=False)
        values |= {name: buffer for name, buffer in buffers if name not in values}
        return {name: Entry(source, name, value) for name, value in values.items()}
    if isinstance(source, Snapshot):
        source = source.weights()
    if isinstance(source, TensorDictBase | Mapping):
        return dict(_walk(source, ""))
    raise TypeError(f"weights are of type {type(source).__name__}; pass a module, a TensorDict, or a dict of tensors")


def uninitialized(module: nn.Module) -> dict[str, UninitializedParameter | UninitializedBuffer]:
    """Return the parameters and buffers whose shapes lazy layers do not know yet, by name."""
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    return {
        name: tensor for name, tensor in tensors if isinstance(tensor, UninitializedParameter | UninitializedBuffer)
    }


def require_initialized(module: nn.Module) -> None:
    """Raise `ValueError` if a module has lazy layers that are not initialised; the message lists their weights."""
    if names := [*uninitialized(module)]:
        raise ValueError(
            f"{type(module).__name__} has lazy layers that are not initialised: {', '.join(names)}; call it once on an "
            "observation first, or build the Collector that trains it first, which does so"
        )


def initialize(module: nn.Module, weights: Snapshot) -> None:
    """Give lazy layers the shapes of their weights in a snapshot; values must be copied in afterwards."""
    for name, tensor in uninitialized(module).items():
        if name in weights.places:
            tensor.materialize(weights.places[name].shape)


def flat_weights(source: Any) -> Flat:
    """Return weights by name, without gradients; see `entries`."""
    values = {name: entry.value for name, entry in entries(source).items()}
    return {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


def nest_weights(flat: Flat) -> TensorDict:
    """Return weights by name as a nested TensorDict; extra state is non-tensor data in it."""
    weights = TensorDict({})
    for name, value in flat.items():
        if is_extra(name):
            weights.set_non_tensor((*filter(None, module_path(name).split(".")), EXTRA_STATE), value)
        else:
            weights.set(tuple(name.split(".")), value)
    return weights


def replace_tensors(target: Any) -> None:
    """Replace all tensors by copies, so that later changes do not reach the old tensors."""
    for name, (holder, key, value) in entries(target).items():
        if isinstance(holder, nn.Module) and not is_extra(name):
            value.data = value.data.clone()
        elif not is_extra(name):
            holder[key] = value.detach().clone()


def is_extra(name: str) -> bool:
    """Return whether this is the name of a module's extra state."""
    return name.rpartition(".")[2] == _EXTRA


def module_path(name: str) -> str:
    """Return the path of the submodule that a weight belongs to; empty for the module itself."""
    return name.rpartition(".")[0]


class Place(NamedTuple):
    """The place of a tensor in the flat buffer of its dtype.

    Attributes:
        dtype: dtype of the buffer.
        start: index of the first element.
        shape: shape of the tensor.
    """

    dtype: torch.dtype
    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The weights of one model at one moment.

    Attributes:
        places: places of the tensors, by name; shared parameters once.
        buffers: bytes, one buffer per dtype.
        extras: results of `get_extra_state()`, by name.
    """

    places: Mapping[str, Place]
    buffers: Mapping[torch.dtype, Bytes]
    extras: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of all tensors."""
        return sum(buffer.nbytes for buffer in self.buffers.values())

    def weights(self) -> Flat:
        """Return tensors and extra state by name; read-only."""
        return {**self.tensors(), **self.extras}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return views of the buffers, by name; read-only."""
        flat = {dtype: _as_tensor(buffer, dtype) for dtype, buffer in self.buffers.items()}
        return {
            name: flat[place.dtype][place.start : place.start + prod(place.shape)].view(place.shape)
            for name, place in self.places.items()
        }

    def equals(self, other: Snapshot) -> bool:
        """Return whether names and values are equal; false if there is extra state, which is not compared."""
        if self.extras or other.extras or self.places != other.places:
            return False
        return all(np.array_equal(buffer, other.buffers[dtype]) for dtype, buffer in self.buffers.items())


def plan_copy(snapshot: Snapshot, model: Any) -> Callable[[], None]:
    """Check that a snapshot fits a model, and return the function that copies it in.

    Args:
        snapshot: snapshot of all weights of the model, or of some; its memory must last until the copy.
        model: a module, a TensorDict or a dict; its tensors remain the same objects.

    Raises:
        KeyError: the model has no weight of a name.
        ValueError: its weight has another shape.
    """
    targets = entries(model)
    unknown = sorted({*snapshot.places, *snapshot.extras} - set(targets))
    if unknown:
        raise KeyError(f"the model has no {', '.join(unknown)}; it has {sorted(targets)}; nothing was changed")
    for name, place in snapshot.places.items():
        if place.shape != (shape := tuple(targets[name].value.shape)):
            raise ValueError(f"weight {name} has shape {place.shape}, the model's has {shape}; nothing was changed")

    def copy_in() -> None:
        with torch.no_grad():
            for name, value in snapshot.tensors().items():
                targets[name].value.copy_(value)
        for name, value in snapshot.extras.items():
            targets[name].put_extra(_copy_extra(value))

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


def _copy_extra(state: Any) -> Any:
    return state.detach().cpu().clone() if isinstance(state, torch.Tensor) else copy.deepcopy(state)


def _as_tensor(buffer: Bytes, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the buffer's memory; torch would warn of read-only memory."""
    if not buffer.size:
        return torch.empty(0, dtype=dtype)
    return torch.from_numpy(buffer if buffer.flags.writeable else np.asarray(_WritableView(buffer))).view(dtype)


class _WritableView:
    """Describes the memory of an array as writable, and keeps it alive."""

    def __init__(self, buffer: Bytes) -> None:
        self._buffer = buffer
        address, _ = buffer.__array_interface__["data"]
        self.__array_interface__ = {**buffer.__array_interface__, "data": (address, False)}


_PREFIX = "module."
_MAX_PREFIXES = 4


@dataclass(frozen=True)
class WeightSpec:
    """The shape and dtype of a parameter or buffer.

    Attributes:
        shape: shape of the tensor.
        dtype: dtype of the tensor.
        required: false for buffers, which keep their values if they are missing.
        loose: the module does not count it as its state (a cache, say): it also keeps its value if another does not
            fit.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    required: bool
    loose: bool = False

    def __str__(self) -> str:
        """Describe it in a message."""
        return f"{self.dtype} {self.shape}"

    def accepts(self, name: str, value: torch.Tensor) -> bool:
        """Return whether a value fits; false if it must be left out.

        Raises:
            ValueError: another shape, or a dtype that is not cast.
        """
        casts = self.dtype == value.dtype or (self.dtype.is_floating_point and value.dtype.is_floating_point)
        fits = casts and self.shape == tuple(value.shape)
        if not (fits or self.loose):
            raise ValueError(
                f"weight {name} has shape {tuple(value.shape)} and dtype {value.dtype}, "
                f"the policy's has {self.shape} and {self.dtype}; nothing was changed"
            )
        return fits


@dataclass(frozen=True)
class Manifest:
    """Names, shapes and dtypes of a model's weights. Small; travels by pickle.

    Attributes:
        weights: specs of parameters and buffers, each under one name.
        aliases: names in `weights` by the other names of shared parameters.
        extras: names of extra state.
    """

    weights: Mapping[str, WeightSpec]
    aliases: Mapping[str, str]
    extras: frozenset[str]

    @classmethod
    def of(cls, model: Any, *, required: bool = True) -> Manifest:
        """Return the manifest of a module or of weights; an empty one for other models, such as plain functions.

        Args:
            model: a module, a TensorDict or a dict.
            required: whether parameters must be there, or all weights if none is a parameter.

        Raises:
            TypeError: a dict with values that are no weights.
        """
        if not isinstance(model, nn.Module | TensorDictBase | Mapping):
            return cls({}, {}, frozenset())
        model_entries = entries(model)
        tensors = {name: entry.value for name, entry in model_entries.items() if not is_extra(name)}
        needed, state = {name for name, value in tensors.items() if isinstance(value, nn.Parameter)}, set(tensors)
        if isinstance(model, nn.Module):
            state = set(model.state_dict(keep_vars=True))
        elif not needed:
            needed = state
        first_names = {id(value): name for name, value in reversed(tensors.items())}
        weights = {
            name: WeightSpec(tuple(value.shape), value.dtype, required and name in needed, name not in state)
            for name, value in tensors.items()
            if first_names[id(value)] == name
        }
        aliases = {name: first_names[id(value)] for name, value in tensors.items() if name not in weights}
        return cls(weights, aliases, frozenset(filter(is_extra, model_entries)))

    @property
    def empty(self) -> bool:
        """Return whether the model has no weights."""
        return not (self.weights or self.extras)

    def match(self, source: Any) -> Flat:
        """Return the weights of a module, TensorDict or dict under the names of the manifest; not copied.

        Raises:
            TypeError: not weights.
            KeyError: a parameter is missing or a name unknown.
            ValueError: another shape, or a dtype that is not cast.
        """
        weights = flat_weights(source)
        missing, unknown = self._misfits(weights)
        if missing or unknown:
            candidates = [renamed for renamed in _with_prefixes(weights) if not any(self._misfits(renamed))]
            if len(candidates) != 1:
                misfits = f"missing {missing}, unknown {unknown}"
                raise KeyError(f"weights do not fit the policy: {misfits}; nothing was changed")
            weights = candidates[0]
        weights = {self.aliases.get(name, name): value for name, value in weights.items()}
        return {
            name: value for name, value in weights.items() if is_extra(name) or self.weights[name].accepts(name, value)
        }

    def snapshot(self, weights: Flat) -> Snapshot:
        """Copy matched weights, all or some, in the dtypes of the model."""
        sizes: dict[torch.dtype, int] = {}
        places: dict[str, Place] = {}
        for name in (name for name in weights if not is_extra(name)):
            spec = self.weights[name]
            places[name] = Place(spec.dtype, sizes.get(spec.dtype, 0), spec.shape)
            sizes[spec.dtype] = places[name].start + prod(spec.shape)
        buffers = {dtype: np.empty(size * dtype.itemsize, np.uint8) for dtype, size in sizes.items()}
        extras = {name: _copy_extra(value) for name, value in weights.items() if is_extra(name)}
        snapshot = Snapshot(places, buffers, extras)
        for name, view in snapshot.tensors().items():
            view.copy_(weights[name])
        return snapshot

    def difference(self, other: Manifest) -> str:
        """Describe the first weight that differs in another manifest; empty if they are equal."""
        specs, other_specs = self._all_specs(), other._all_specs()
        for name in sorted({*specs, *other_specs}):
            if specs.get(name) != other_specs.get(name):
                return f"weight {name} is {other_specs.get(name, 'missing')}, not {specs.get(name, 'missing')}"
        return ""

    def _all_specs(self) -> dict[str, Any]:
        return {**self.aliases, **self.weights, **dict.fromkeys(self.extras, "there")}

    def _misfits(self, weights: Flat) -> tuple[list[str], list[str]]:
        """Return the missing and the unknown names."""
        names = {self.aliases.get(name, name) for name in weights}
        missing = sorted(name for name, spec in self.weights.items() if spec.required and name not in names)
        return missing, sorted(names - set(self.weights) - self.extras)


def take_snapshot(source: Any, manifest: Manifest) -> Snapshot | None:
    """Copy weights for the model of a manifest, in its dtypes; `None` if it has none. Nothing is read later.

    Args:
        source: a module, a TensorDict, or a mapping with string keys, nested or dotted; only read, on any device.
        manifest: manifest of the model that gets them.

    Raises:
        TypeError: not weights.
        KeyError: a parameter is missing or a name unknown; the message lists all.
        ValueError: another shape, or a dtype that is not cast.
    """
    return None if manifest.empty else manifest.snapshot(manifest.match(source))


def snapshot_of(source: Any) -> Snapshot:
    """Copy weights for any model.

    Raises:
        TypeError: not weights.
    """
    if isinstance(source, Snapshot):
        return source
    manifest = Manifest.of(source)
    return manifest.snapshot(manifest.match(source))


def plan_update(target: Any, source: Any, *, required: bool = True) -> Callable[[], None]:
    """Check weights against a model of this process, and return the function that copies them in and cannot fail.

    Values are read now: later changes of the source do not show. Weights that share the model's memory are left out,
    so that a later copy does not undo changes of the model.

    Args:
        target: a module, a TensorDict or a dict, whose tensors get the values.
        source: a module, a TensorDict or a dict with the values.
        required: whether parameters must be there; see `Manifest.of`.

    Raises:
        TypeError: not weights.
        KeyError: a parameter is missing or a name unknown.
        ValueError: another shape, or a dtype that is not cast.
    """
    manifest, targets = Manifest.of(target, required=required), entries(target)
    weights = {
        name: value
        for name, value in manifest.match(source).items()
        if not isinstance(value, torch.Tensor) or _memory(value) != _memory(targets[name].value)
    }
    return plan_copy(manifest.snapshot(weights), target)


def _with_prefixes(weights: Flat) -> Iterator[Flat]:
    """Yield the weights with one, two, … prefixes removed, and with as many added."""
    shortened = weights
    for n_prefixes in range(1, _MAX_PREFIXES + 1):
        if all(name.startswith(_PREFIX) for name in shortened):
            shortened = {name.removeprefix(_PREFIX): value for name, value in shortened.items()}
            yield shortened
        yield {_PREFIX * n_prefixes + name: value for name, value in weights.items()}


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the address of a tensor's numbers and their layout."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr()
