"""What weights are called, copies of them that travel well, and how these get into a model.

    module | TensorDict | dict ──▶ tensors by name ──copied──▶ Snapshot ──fitting: checked, in place, whole──▶ model
                                                               one flat buffer per dtype

Nested keys and dotted names are the same. A snapshot has nothing of a module but values: it is detached, on the
CPU, and pickles as a few numpy arrays.

    worker                                   caller
    Manifest.of(module) ──(travels)──▶ take(source, manifest): a snapshot that fits, or why it does not

Contract: names and shapes are checked before anything is changed; a missing parameter or an unknown name is a
`KeyError` that lists them, another shape a `ValueError`; buffers and extra state may be missing; prefixes of `module`
are added or removed where exactly one way fits; floating dtypes are cast.
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
from tensordict import TensorDictBase, is_non_tensor
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

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
        ValueError: a module with lazy layers that are not initialised.
    """
    if isinstance(source, nn.Module):
        require_initialized(source)
        held: Flat = source.state_dict(keep_vars=True)
        buffers = source.named_buffers(remove_duplicate=False)
        held |= {name: buffer for name, buffer in buffers if name not in held}
        return {name: Entry(source, name, value) for name, value in held.items()}
    if isinstance(source, Snapshot):
        source = source.weights()
    if isinstance(source, TensorDictBase | Mapping):
        return dict(_walk(source, ""))
    raise TypeError(f"weights are of type {type(source).__name__}; pass a module, a TensorDict, or a dict of tensors")


def uninitialized(module: nn.Module) -> dict[str, UninitializedParameter | UninitializedBuffer]:
    """Find the parameters and buffers whose shapes lazy layers do not know yet, by name."""
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    return {name: each for name, each in tensors if isinstance(each, UninitializedParameter | UninitializedBuffer)}


def require_initialized(module: nn.Module) -> None:
    """Raise `ValueError` if a module has lazy layers that are not initialised; the message lists their weights."""
    if names := [*uninitialized(module)]:
        raise ValueError(
            f"{type(module).__name__} has lazy layers that are not initialised: {', '.join(names)}; call it once on an "
            "observation first, or build the Collector that trains it first, which does so"
        )


def initialize(module: nn.Module, weights: Snapshot) -> None:
    """Give lazy layers the shapes that their weights have in a snapshot; values are to be copied in afterwards."""
    for name, tensor in uninitialized(module).items():
        if name in weights.places:
            tensor.materialize(weights.places[name].shape)


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


_PREFIX = "module."
_DEEPEST = 4


@dataclass(frozen=True)
class Weight:
    """One parameter or buffer.

    Attributes:
        shape: of the tensor.
        dtype: of the tensor.
        required: false for buffers, which stay as they are where they are missing.
        loose: the module does not count it as its state (a cache, say): it stays too where another does not fit.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    required: bool
    loose: bool = False

    def __str__(self) -> str:
        """What it is, in words."""
        return f"{self.dtype} {self.shape}"

    def takes(self, name: str, value: torch.Tensor) -> bool:
        """Whether a value fits; false for one that is left out.

        Raises:
            ValueError: another shape, or a dtype that is not cast.
        """
        casts = self.dtype == value.dtype or (self.dtype.is_floating_point and value.dtype.is_floating_point)
        fits = casts and self.shape == tuple(value.shape)
        if not (fits or self.loose):
            given = f"{tuple(value.shape)} and dtype {value.dtype}"
            wanted = f"{self.shape} and {self.dtype}"
            raise ValueError(f"weight {name} has shape {given}, the policy's has {wanted}; nothing was changed")
        return fits


@dataclass(frozen=True)
class Manifest:
    """Names, shapes and dtypes of a model's weights. Small; travels by pickle.

    Attributes:
        weights: parameters and buffers, each under one name.
        aliases: the other names of parameters that are shared, and the name above.
        extras: names of extra state.
    """

    weights: Mapping[str, Weight]
    aliases: Mapping[str, str]
    extras: frozenset[str]

    @classmethod
    def of(cls, model: Any, *, required: bool = True) -> Manifest:
        """That of a module, or of weights without their module; empty for anything else, as a plain function.

        Args:
            model: a module, a TensorDict or a dict.
            required: whether parameters must be there; where weights mark none as such, all must.

        Raises:
            TypeError: a dict of something else.
        """
        if not isinstance(model, nn.Module | TensorDictBase | Mapping):
            return cls({}, {}, frozenset())
        held = entries(model)
        tensors = {name: entry.value for name, entry in held.items() if not is_extra(name)}
        wanted, state = {name for name, value in tensors.items() if isinstance(value, nn.Parameter)}, set(tensors)
        if isinstance(model, nn.Module):
            state = set(model.state_dict(keep_vars=True))
        elif not wanted:
            wanted = state
        first = {id(value): name for name, value in reversed(tensors.items())}
        weights = {
            name: Weight(tuple(value.shape), value.dtype, required and name in wanted, name not in state)
            for name, value in tensors.items()
            if first[id(value)] == name
        }
        aliases = {name: first[id(value)] for name, value in tensors.items() if name not in weights}
        return cls(weights, aliases, frozenset(filter(is_extra, held)))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not (self.weights or self.extras)

    def fitted(self, source: Any) -> Flat:
        """The weights of a module, TensorDict or dict under the names they have here; not copied.

        Raises:
            TypeError: not weights.
            KeyError: a parameter is missing or a name unknown.
            ValueError: another shape, or a dtype that is not cast.
        """
        theirs = flat_weights(source)
        missing, unknown = self._misfit(theirs)
        if missing or unknown:
            ways = [way for way in _renamed(theirs) if not any(self._misfit(way))]
            if len(ways) != 1:
                misfit = f"missing {missing}, unknown {unknown}"
                raise KeyError(f"weights do not fit the policy: {misfit}; nothing was changed")
            theirs = ways[0]
        once = {self.aliases.get(name, name): value for name, value in theirs.items()}
        return {name: value for name, value in once.items() if is_extra(name) or self.weights[name].takes(name, value)}

    def copied(self, weights: Flat) -> Snapshot:
        """A snapshot of weights that fit, of all or of some, in the dtypes of the model."""
        sizes: dict[torch.dtype, int] = {}
        places: dict[str, Place] = {}
        for name in (name for name in weights if not is_extra(name)):
            wanted = self.weights[name]
            places[name] = Place(wanted.dtype, sizes.get(wanted.dtype, 0), wanted.shape)
            sizes[wanted.dtype] = places[name].start + prod(wanted.shape)
        buffers = {dtype: np.empty(size * dtype.itemsize, np.uint8) for dtype, size in sizes.items()}
        extras = {name: own_extra(value) for name, value in weights.items() if is_extra(name)}
        snapshot = Snapshot(places, buffers, extras)
        for name, view in snapshot.tensors().items():
            view.copy_(weights[name])
        return snapshot

    def difference(self, other: Manifest) -> str:
        """What the other has in another way, in words; empty if the two are the same."""
        mine, theirs = ({**one.aliases, **one.weights, **dict.fromkeys(one.extras, "there")} for one in (self, other))
        names = (name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name))
        differing = next(names, None)
        if differing is None:
            return ""
        return f"weight {differing} is {theirs.get(differing, 'missing')}, not {mine.get(differing, 'missing')}"

    def _misfit(self, theirs: Flat) -> tuple[list[str], list[str]]:
        """Names that are missing, and names that are unknown here."""
        given = {self.aliases.get(name, name) for name in theirs}
        missing = sorted(name for name, weight in self.weights.items() if weight.required and name not in given)
        return missing, sorted(given - set(self.weights) - self.extras)


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
    return None if manifest.empty else manifest.copied(manifest.fitted(source))


def snapshot_of(source: Any) -> Snapshot:
    """Copy weights, whatever model they are for.

    Raises:
        TypeError: not weights.
    """
    if isinstance(source, Snapshot):
        return source
    manifest = Manifest.of(source)
    return manifest.copied(manifest.fitted(source))


def plan(target: Any, source: Any, *, required: bool = True) -> Callable[[], None]:
    """Check weights against a model of this process; the function that copies them in, which then cannot fail.

    Values are read when the plan is made: changes of the source after that do not show. What already is the model's
    own memory is not copied, so that a plan that is carried out later takes nothing back.

    Args:
        target: a module, a TensorDict or a dict, whose tensors get the values.
        source: has them.
        required: as in `Manifest.of`.

    Raises:
        TypeError: not weights.
        KeyError: a parameter is missing or a name unknown.
        ValueError: another shape, or a dtype that is not cast.
    """
    manifest, held = Manifest.of(target, required=required), entries(target)
    fitted = manifest.fitted(source)
    own = {name for name, value in fitted.items() if _memory(held[name].value) == _memory(value) != ()}
    return fitting(manifest.copied({name: value for name, value in fitted.items() if name not in own}), target)


def _renamed(theirs: Flat) -> Iterator[Flat]:
    """The same weights with one, two, … prefixes less, then more."""
    less = theirs
    for depth in range(1, _DEEPEST + 1):
        if all(name.startswith(_PREFIX) for name in less):
            less = {name.removeprefix(_PREFIX): value for name, value in less.items()}
            yield less
        yield {_PREFIX * depth + name: value for name, value in theirs.items()}


def _memory(value: Any) -> tuple[Any, ...]:
    """Where a tensor's numbers are, and how they lie there; nothing for extra state."""
    return (value.shape, value.stride(), value.dtype, value.data_ptr()) if isinstance(value, torch.Tensor) else ()
