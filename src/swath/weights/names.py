"""What weights are called: nested keys and dotted names are the same, prefixes of `module` come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import nn

Flat = dict[str, Any]
"""Tensors by their dotted names; what `get_extra_state()` gave under names that end in `_extra_state`."""

POLICY = "policy"
"""The id of the policy among the models that take weights."""

_PREFIX = "module."
_DEEPEST = 4
_EXTRA = "_extra_state"

EXTRA_STATE = "__extra_state__"
"""What extra state is called where weights are a TensorDict, beside the weights of its module."""


def flat_weights(source: Any) -> Flat:
    """Names and tensors of a module, a TensorDict, or a mapping with string keys, nested or dotted.

    Raises:
        TypeError: anything else.
    """
    return {
        name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in held_in(source).items()
    }


def held_in(source: Any) -> Flat:
    """As `flat_weights`, with the tensors themselves, parameters too."""
    if isinstance(source, nn.Module):
        return dict(_flatten(held_by(source), ""))
    if isinstance(source, TensorDictBase | Mapping):
        return dict(_flatten(source, ""))
    raise TypeError(f"weights are of type {type(source).__name__}; pass a module, a TensorDict, or a dict of tensors")


def held_by(module: nn.Module) -> Flat:
    """A module's own parameters and buffers, not copies, and extra state as it gives it."""
    held: Flat = module.state_dict(keep_vars=True)
    buffers = module.named_buffers(remove_duplicate=False)
    return {**held, **{name: buffer for name, buffer in buffers if name not in held}}


def is_extra(name: str) -> bool:
    """Whether it is a module's extra state."""
    return name.rpartition(".")[2] == _EXTRA


def owner(name: str) -> str:
    """Path of the submodule that a weight belongs to; empty for the module itself."""
    return name.rpartition(".")[0]


def renamed(theirs: Flat, fits: Callable[[Flat], bool]) -> Flat | None:
    """`theirs` under names that fit: as they are, or with some prefixes more or less if exactly one way fits."""
    if fits(theirs):
        return theirs
    fitting = [way for way in _ways(theirs) if fits(way)]
    return fitting[0] if len(fitting) == 1 else None


def by_worker(weights: Any) -> dict[int, Any] | None:
    """Weights of their own for some workers, if that is what these are.

    Raises:
        ValueError: numbers of workers and names are mixed as keys.
    """
    if not isinstance(weights, dict) or not any(isinstance(key, int) for key in weights):
        return None
    if not all(isinstance(key, int) for key in weights):
        raise ValueError(f"weights mix worker numbers and names as keys: {list(weights)}; use one kind")
    return weights


def _flatten(source: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in source.items():
        if not isinstance(key, str):
            raise TypeError(f"weights have the key {key!r}; names of weights are strings")
        if key == EXTRA_STATE:
            yield prefix + _EXTRA, _unwrapped(value)
        elif isinstance(value, torch.Tensor) or is_extra(key):
            yield prefix + key, value
        elif isinstance(value, TensorDictBase | Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            raise TypeError(f"weight {prefix}{key} is of type {type(value).__name__}; it must be a tensor")


def _unwrapped(extra: Any) -> Any:
    """Extra state as its module gave it, also out of a TensorDict, which keeps dicts as TensorDicts."""
    if is_non_tensor(extra):
        return extra.data
    return extra.to_dict() if isinstance(extra, TensorDictBase) else extra


def _ways(theirs: Flat) -> Iterator[Flat]:
    """The same weights with one, two, … prefixes less, then more."""
    less = theirs
    for depth in range(1, _DEEPEST + 1):
        if all(name.startswith(_PREFIX) for name in less):
            less = {name.removeprefix(_PREFIX): value for name, value in less.items()}
            yield less
        yield {_PREFIX * depth + name: value for name, value in theirs.items()}
