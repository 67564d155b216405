"""Weights from wherever they come into a module of this process: checked as a whole, then copied as a whole.

    module | TensorDict | nested dict | state_dict ──▶ plan (all checks, one copy) ──▶ apply (in place)

Contract: names and shapes are checked before anything is changed; a missing parameter or an unknown name is a
`KeyError` that lists them, another shape a `ValueError`; buffers and extra state may be missing; prefixes of `module`
are added or removed where exactly one way fits; floating dtypes are cast. Parameters stay parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from swath.weights.manifest import Manifest
from swath.weights.names import EXTRA_STATE, flat_weights, held_by, owner
from swath.weights.snapshot import apply, copied

__all__ = ["flat_weights", "plan", "plan_into"]


def plan(module: nn.Module, source: Any) -> Callable[[], None]:
    """Check weights against a module; the function that copies them in, which then cannot fail.

    Values are read when the plan is made: changes of the source after that do not show. What already is the module's
    own memory is not copied, so that a plan that is carried out later takes nothing back.

    Raises:
        TypeError: not weights.
        KeyError: a parameter is missing or a name unknown.
        ValueError: another shape, or a dtype that is not cast.
    """
    manifest, held = Manifest.of(module), held_by(module)
    weights = {name: value for name, value in manifest.fitted(source).items() if not _is_same_memory(held[name], value)}
    return partial(apply, copied(weights, manifest), module)


def plan_into(target: Any, source: Any, *, required: bool = True) -> Callable[[], None]:
    """As `plan`, into the tensors of a TensorDict or of a dict, nested or dotted.

    Args:
        target: gets the values.
        source: has them.
        required: whether all parameters must be there; where none are marked as such, all weights must.

    Raises:
        TypeError: not weights.
        KeyError: one is missing or a name unknown.
        ValueError: another shape, or a dtype that is not cast.
    """
    manifest, held = Manifest.of_weights(target, required=required), flat_weights(target)
    weights = {name: value for name, value in manifest.fitted(source).items() if not _is_same_memory(held[name], value)}
    snapshot = copied(weights, manifest)

    def copy_in() -> None:
        with torch.no_grad():
            for name, value in snapshot.tensors().items():
                held[name].copy_(value)
        for name, extra in snapshot.extras.items():
            _put_extra(target, name, extra)

    return copy_in


def _put_extra(target: Any, name: str, extra: Any) -> None:
    if isinstance(target, TensorDictBase):
        target.set_non_tensor((*filter(None, owner(name).split(".")), EXTRA_STATE), extra)
        return
    rest = name
    while rest not in target:  # it is there, dotted or nested: the names were checked
        head, _, rest = rest.partition(".")
        if not rest:
            target[EXTRA_STATE] = extra
            return
        target = target[head]
    target[rest] = extra


def _is_same_memory(mine: Any, theirs: Any) -> bool:
    if not (isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor)):
        return False
    forms = [(one.shape, one.stride(), one.dtype, one.data_ptr()) for one in (mine, theirs)]
    return forms[0] == forms[1] and mine.data_ptr() != 0
