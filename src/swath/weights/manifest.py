"""What weights a model wants: made where the model is, checked where weights come from.

worker                                   caller
Manifest.of(module) ──(travels)──▶ take(source, manifest): a snapshot that fits, or why it does not

Contract: names and shapes are checked before anything is changed; a missing parameter or an unknown name is a
`KeyError` that lists them, another shape a `ValueError`; buffers and extra state may be missing; prefixes of `module`
are added or removed where exactly one way fits; floating dtypes are cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn

from swath.weights.snapshot import Flat, Place, Snapshot, entries, fitting, flat_weights, is_extra, own_extra

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
