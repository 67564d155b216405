"""Weights from wherever they come into a module: checked as a whole, then copied as a whole.

    module | TensorDict | nested dict | state_dict ──▶ flat names ──▶ plan (all checks) ──▶ apply (in place)

Contract: names and shapes are checked before anything is changed; a missing parameter or an unknown name is a
`KeyError` that lists them, another shape a `ValueError`; buffers may be missing; prefixes of `module` are added or
removed on either side where exactly one way fits; floating dtypes are cast. Parameters stay parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

Flat = dict[str, torch.Tensor]
_PREFIX = "module."


def flat_weights(source: Any) -> Flat:
    """Names and tensors of a module, a TensorDict, or a mapping with string keys, nested or dotted.

    Raises:
        TypeError: anything else.
    """
    if isinstance(source, nn.Module):
        return {name: tensor for name, tensor in source.state_dict().items() if isinstance(tensor, torch.Tensor)}
    if isinstance(source, TensorDictBase | Mapping):
        return {name: tensor.detach() for name, tensor in _flatten(source, "")}
    raise TypeError(f"weights are a {type(source).__name__}; pass a module, a TensorDict, or a dict of tensors")


def plan(module: nn.Module, source: Any) -> Callable[[], None]:
    """Check weights against a module; the function that copies them in, which then cannot fail.

    Values are read when the plan is made: changes of the source after that do not show.

    Raises:
        TypeError: not weights.
        KeyError: a parameter is missing or a name unknown.
        ValueError: another shape, or a dtype that is not cast.
    """
    mine = _targets(module)
    theirs = _renamed(flat_weights(source), set(mine), set(dict(module.named_parameters())))
    pairs = [(mine[name], _checked(name, mine[name], tensor)) for name, tensor in theirs.items()]

    def apply() -> None:
        with torch.no_grad():
            for target, value in pairs:
                target.copy_(value)

    return apply


def _targets(module: nn.Module) -> Flat:
    return {
        name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if isinstance(tensor, torch.Tensor)
    }


def _flatten(source: Any, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    for key, value in source.items():
        if not isinstance(key, str):
            raise TypeError(f"weights have the key {key!r}; names of weights are strings")
        if isinstance(value, TensorDictBase | Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            yield prefix + key, value
        else:
            raise TypeError(f"weight {prefix}{key} is a {type(value).__name__}; it must be a tensor")


def _renamed(theirs: Flat, known: set[str], required: set[str]) -> Flat:
    """`theirs` under names that fit: as they are, or with a prefix more or less."""
    if _fits(theirs, known, required):
        return theirs
    ways = [
        {name.removeprefix(_PREFIX): tensor for name, tensor in theirs.items()},
        {_PREFIX + name: tensor for name, tensor in theirs.items()},
    ]
    fitting = [way for way in ways if len(way) == len(theirs) and _fits(way, known, required)]
    if len(fitting) == 1:
        return fitting[0]
    missing, unknown = sorted(required - set(theirs)), sorted(set(theirs) - known)
    raise KeyError(f"weights do not fit the policy: missing {missing}, unknown {unknown}; nothing was changed")


def _fits(names: Flat, known: set[str], required: set[str]) -> bool:
    return required <= set(names) <= known


def _checked(name: str, target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if target.shape != value.shape:
        raise ValueError(
            f"weight {name} has shape {tuple(value.shape)}, the policy's has {tuple(target.shape)}; nothing was changed"
        )
    if target.dtype != value.dtype and not (target.is_floating_point() and value.is_floating_point()):
        raise ValueError(f"weight {name} has dtype {value.dtype}, the policy's has {target.dtype}; nothing was changed")
    return value.detach().clone()
