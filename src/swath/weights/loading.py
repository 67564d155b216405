"""Weights from wherever they come into a module: checked as a whole, then copied as a whole.

    module | TensorDict | nested dict | state_dict ──▶ flat names ──▶ plan (all checks) ──▶ apply (in place)

Contract: names and shapes are checked before anything is changed; a missing parameter or an unknown name is a
`KeyError` that lists them, another shape a `ValueError`; buffers and extra state may be missing; prefixes of `module`
are added or removed where exactly one way fits; floating dtypes are cast. Parameters stay parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

Flat = dict[str, Any]
"""Tensors by their dotted names; what `get_extra_state()` gave under names that end in `_extra_state`."""

_PREFIX = "module."
_DEEPEST = 4
_EXTRA = "_extra_state"


def flat_weights(source: Any) -> Flat:
    """Names and tensors of a module, a TensorDict, or a mapping with string keys, nested or dotted.

    Raises:
        TypeError: anything else.
    """
    if isinstance(source, nn.Module):
        source = source.state_dict()
    if isinstance(source, TensorDictBase | Mapping):
        return dict(_flatten(source, ""))
    raise TypeError(f"weights are a {type(source).__name__}; pass a module, a TensorDict, or a dict of tensors")


def plan(module: nn.Module, source: Any) -> Callable[[], None]:
    """Check weights against a module; the function that copies them in, which then cannot fail.

    Values are read when the plan is made: changes of the source after that do not show. What already is the module's
    own memory is not copied, so that a plan that is carried out later takes nothing back.

    Raises:
        TypeError: not weights.
        KeyError: a parameter is missing or a name unknown.
        ValueError: another shape, or a dtype that is not cast.
    """
    mine: Flat = module.state_dict(keep_vars=True)
    theirs = _renamed(flat_weights(source), set(mine), set(dict(module.named_parameters())))
    extras = [(_owner(module, name), copy.deepcopy(value)) for name, value in theirs.items() if _is_extra(name)]
    pairs = [
        (mine[name], _checked(name, mine[name], tensor).clone())
        for name, tensor in theirs.items()
        if not _is_extra(name) and not _is_same_memory(mine[name], tensor)
    ]

    def apply() -> None:
        with torch.no_grad():
            for target, value in pairs:
                target.copy_(value)
        for owner, extra in extras:
            owner.set_extra_state(extra)

    return apply


def _flatten(source: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in source.items():
        if not isinstance(key, str):
            raise TypeError(f"weights have the key {key!r}; names of weights are strings")
        if isinstance(value, torch.Tensor) or _is_extra(key):
            yield prefix + key, value.detach() if isinstance(value, torch.Tensor) else value
        elif isinstance(value, TensorDictBase | Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            raise TypeError(f"weight {prefix}{key} is a {type(value).__name__}; it must be a tensor")


def _renamed(theirs: Flat, known: set[str], required: set[str]) -> Flat:
    """`theirs` under names that fit: as they are, or with some prefixes more or less."""
    if _fits(theirs, known, required):
        return theirs
    fitting = [way for way in _ways(theirs) if _fits(way, known, required)]
    if len(fitting) == 1:
        return fitting[0]
    missing, unknown = sorted(required - set(theirs)), sorted(set(theirs) - known)
    raise KeyError(f"weights do not fit the policy: missing {missing}, unknown {unknown}; nothing was changed")


def _ways(theirs: Flat) -> Iterator[Flat]:
    """The same weights with one, two, … prefixes less, then more."""
    less = theirs
    for depth in range(1, _DEEPEST + 1):
        if all(name.startswith(_PREFIX) for name in less):
            less = {name.removeprefix(_PREFIX): value for name, value in less.items()}
            yield less
        yield {_PREFIX * depth + name: value for name, value in theirs.items()}


def _fits(names: Flat, known: set[str], required: set[str]) -> bool:
    return required <= set(names) <= known


def _checked(name: str, target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if target.shape != value.shape:
        raise ValueError(
            f"weight {name} has shape {tuple(value.shape)}, the policy's has {tuple(target.shape)}; nothing was changed"
        )
    if target.dtype != value.dtype and not (target.is_floating_point() and value.is_floating_point()):
        raise ValueError(f"weight {name} has dtype {value.dtype}, the policy's has {target.dtype}; nothing was changed")
    return value


def _is_same_memory(target: torch.Tensor, value: torch.Tensor) -> bool:
    return target.shape == value.shape and target.dtype == value.dtype and target.data_ptr() == value.data_ptr() != 0


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == _EXTRA


def _owner(module: nn.Module, name: str) -> nn.Module:
    return module.get_submodule(name.rpartition(".")[0])
