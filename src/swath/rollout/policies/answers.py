"""What a policy answers: which values it gives under which names, and whether they can be actions.

answer ──▶ unpack ──▶ values in the order of the keys, action leaves first
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from gymnasium import spaces
from tensordict import TensorDictBase

from swath.keys import Key, as_key, as_tuple, is_private
from swath.rollout.hosts.specs import ArraySpec, HostSpec
from swath.rollout.spaces import Leaf, Leaves

Unpack = Callable[[Any], list[Any]]

_KINDS = {"f": "f", "i": "iu", "u": "iu", "b": "b"}
"""Kinds of numpy dtypes that an action of each kind may come in."""


def unpacker(policy: Any, answer: Any, spec: HostSpec, inputs: Sequence[Key]) -> tuple[tuple[Key, ...], Unpack]:
    """Names of the policy's outputs, action leaves first, and how to get at them in an answer like this one.

    Raises:
        KeyError: there is no action among them.
        TypeError: there is no answer.
        ValueError: a tuple that does not fit the policy's `out_keys`.
    """
    actions = list(spec.acted)
    if answer is None:
        raise TypeError(f"the policy returned None; it must return the actions {actions}: is a `return` missing?")
    if isinstance(answer, TensorDictBase | Mapping):
        return _unpack_names(answer, actions, inputs)
    if isinstance(answer, tuple):
        named = getattr(policy, "out_keys", None)
        found = [as_key(as_tuple(key)) for key in named] if named is not None else _numbered(actions, len(answer))
        if len(found) != len(answer):
            raise ValueError(f"the policy returned {len(answer)} values for its out_keys {found}")
        return _unpack_places(found, actions)
    if len(actions) > 1:
        raise KeyError(f"the policy returned one {type(answer).__name__}, the env wants the actions {actions}")
    return tuple(actions), lambda value: [value]


def require_fitting(keys: Sequence[Key], leaves: Leaves, spec: ArraySpec) -> None:
    """Check outputs `[B, …]` against the envs.

    Raises:
        TypeError: no numbers, or an action of the wrong dtype.
        ValueError: not one row per env, or an action of the wrong shape.
    """
    for leaf, value in zip(spec.action, leaves, strict=False):
        _require_action(leaf, value, spec)
    for key, value in zip(keys, leaves, strict=True):
        _require_rows(key, value, spec)


def _unpack_names(answer: Any, actions: list[Key], inputs: Sequence[Key]) -> tuple[tuple[Key, ...], Unpack]:
    found = {key: path for key, path in _leaf_paths(answer) if key not in inputs and not is_private(key)}
    keys = _actions_first(list(found), actions)
    if isinstance(answer, TensorDictBase):
        return keys, lambda td: [td.get(key) for key in keys]
    paths = [found[key] for key in keys]
    return keys, lambda mapping: [reduce(getitem, path, mapping) for path in paths]


def _unpack_places(found: list[Key], actions: list[Key]) -> tuple[tuple[Key, ...], Unpack]:
    keys = _actions_first([key for key in found if not is_private(key)], actions)
    places = [found.index(key) for key in keys]
    if places == list(range(len(found))):
        return keys, list
    return keys, lambda values: [values[place] for place in places]


def _actions_first(found: list[Key], actions: list[Key]) -> tuple[Key, ...]:
    missing = [key for key in actions if key not in found]
    if missing:
        raise KeyError(f"the policy must answer with the action {missing}; it answered with {found}")
    return (*actions, *(key for key in found if key not in actions))


def _leaf_paths(answer: Any) -> Iterator[tuple[Key, tuple[Any, ...]]]:
    """Leaves by name, with the keys that lead to each: those of a plain dict may be nested, tuples or both."""
    for key, value in answer.items():
        if isinstance(value, TensorDictBase | Mapping):
            yield from (
                (as_key((*as_tuple(key), *as_tuple(inner))), (key, *path)) for inner, path in _leaf_paths(value)
            )
        else:
            yield as_key(as_tuple(key)), (key,)


def _numbered(actions: list[Key], count: int) -> list[Key]:
    return [*actions, *(f"output{i}" for i in range(1, count - len(actions) + 1))][:count]


def _require_rows(key: Key, value: Any, spec: ArraySpec) -> None:
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        raise TypeError(f"the policy's {key!r} is {value.reshape(-1)[0]!r}; it must be a tensor, an array or a number")
    if tuple(value.shape[:1]) != (spec.num_envs,):
        raise ValueError(
            f"the policy's {key!r} has shape {tuple(value.shape)}; it must begin with the batch shape "
            f"{spec.batch_shape}, one row per env"
        )


def _require_action(leaf: Leaf, value: Any, spec: ArraySpec) -> None:
    lead = spec.batch_shape
    wanted, got = (*lead, *leaf.shape), tuple(value.shape if lead else value.shape[1:])
    if wanted != got:
        where = f"with batch shape {lead}" if lead else "of one env alone"
        raise ValueError(
            f"the policy's {leaf.key!r} has shape {got}; {leaf.space} {where} wants {wanted}: "
            "it must answer with one action per env, for instance sampled from its logits"
        )
    kinds = _KINDS[leaf.dtype.kind] + ("b" if isinstance(leaf.space, spaces.MultiBinary) else "")
    if value.dtype.kind not in kinds:
        raise TypeError(f"the policy's {leaf.key!r} has dtype {value.dtype}; {leaf.space} wants {leaf.dtype}")
