"""What weights a model wants: made where the model is, checked where weights come from.

worker                                   caller
Manifest.of(module) ──(travels)──▶ manifest.fitted(source): its names and values, or why they do not fit
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from swath.weights.names import Flat, flat_weights, held_by, held_in, is_extra, renamed


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

    def takes(self, name: str, value: torch.Tensor) -> bool:
        """Whether a value fits; false for one that is left out.

        Raises:
            ValueError: another shape, or a dtype that is not cast.
        """
        if self.shape == tuple(value.shape) and self._casts(value.dtype):
            return True
        if self.loose:
            return False
        what, got, wanted = (
            ("dtype", value.dtype, self.dtype)
            if self.shape == tuple(value.shape)
            else ("shape", tuple(value.shape), self.shape)
        )
        raise ValueError(f"weight {name} has {what} {got}, the policy's has {wanted}; nothing was changed")

    def _casts(self, dtype: torch.dtype) -> bool:
        return self.dtype == dtype or (self.dtype.is_floating_point and dtype.is_floating_point)


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
    def of(cls, model: Any) -> Manifest:
        """That of a module; empty for what has no weights, as a plain function."""
        if not isinstance(model, nn.Module):
            return cls({}, {}, frozenset())
        held, state = held_by(model), set(model.state_dict(keep_vars=True))
        tensors = {name: value for name, value in held.items() if not is_extra(name)}
        first: dict[int, str] = {}
        for name, tensor in tensors.items():
            first.setdefault(id(tensor), name)
        weights = {name: _wanted(tensors[name], loose=name not in state) for name in first.values()}
        aliases = {name: first[id(tensor)] for name, tensor in tensors.items() if name not in weights}
        return cls(weights, aliases, frozenset(filter(is_extra, held)))

    @classmethod
    def of_weights(cls, source: Any, *, required: bool = True) -> Manifest:
        """That of weights without their model.

        Args:
            source: a module, a TensorDict or a dict.
            required: whether parameters must be there; where none are marked as such, all weights must.

        Raises:
            TypeError: not weights.
        """
        held = held_in(source)
        tensors = {name: value for name, value in held.items() if not is_extra(name)}
        parameters = {name for name, value in tensors.items() if isinstance(value, nn.Parameter)} or set(tensors)
        weights = {
            name: Weight(tuple(value.shape), value.dtype, required=required and name in parameters)
            for name, value in tensors.items()
        }
        return cls(weights, {}, frozenset(filter(is_extra, held)))

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
        ways = (renamed(theirs, self._fits) for theirs in _forms(source))
        fitting = next((way for way in ways if way is not None), None)
        if fitting is None:
            raise self._misfit(flat_weights(source))
        once = {self.aliases.get(name, name): value for name, value in fitting.items()}
        return {name: value for name, value in once.items() if is_extra(name) or self.weights[name].takes(name, value)}

    def difference(self, other: Manifest) -> str:
        """What the other has in another way, in words; empty if the two are the same."""
        for name in sorted({*self.weights, *other.weights}):
            mine, theirs = self.weights.get(name), other.weights.get(name)
            if mine != theirs:
                return f"weight {name} is {_described(theirs)}, not {_described(mine)}"
        names = {name for name, _ in {*self.aliases.items()} ^ {*other.aliases.items()}} | (self.extras ^ other.extras)
        return f"{min(names)} is shared, or there, in one of them only" if names else ""

    def _misfit(self, theirs: Flat) -> KeyError:
        return KeyError(
            f"weights do not fit the policy: missing {self._missing(theirs)}, unknown {self._unknown(theirs)}; "
            "nothing was changed"
        )

    def _fits(self, theirs: Flat) -> bool:
        return not self._unknown(theirs) and not self._missing(theirs)

    def _missing(self, theirs: Flat) -> list[str]:
        given = {self.aliases.get(name, name) for name in theirs}
        return sorted(name for name, weight in self.weights.items() if weight.required and name not in given)

    def _unknown(self, theirs: Flat) -> list[str]:
        return sorted(set(theirs) - set(self.weights) - set(self.aliases) - self.extras)


def _forms(source: Any) -> Iterator[Flat]:
    """A module's weights with buffers that it does not count as its state, then without: they may be missing here."""
    yield flat_weights(source)
    if isinstance(source, nn.Module):
        yield flat_weights(source.state_dict())


def _wanted(tensor: torch.Tensor, *, loose: bool) -> Weight:
    return Weight(tuple(tensor.shape), tensor.dtype, isinstance(tensor, nn.Parameter), loose)


def _described(weight: Weight | None) -> str:
    return "missing" if weight is None else f"{weight.dtype} {weight.shape}"
