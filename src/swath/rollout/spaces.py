"""Gymnasium spaces as flat lists of leaves: which entries an env has, and how to reach them.

    Dict(a=Box, b=Tuple(Discrete, Box))  ──▶  Leaf("a"), Leaf("b_0"), Leaf("b_1")

A leaf is one array per env. Leaves keep their order for the life of a host, so that the loop passes plain lists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from reprlib import repr as brief
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from swath.keys import ACTION, OBSERVATION, RESERVED, Key, as_key

Array: TypeAlias = npt.NDArray[Any]
Leaves: TypeAlias = list[Any]
"""One array (or tensor) `[B, …]` per leaf."""

SERVED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple (nested)"


@dataclass(frozen=True)
class Leaf:
    """One entry of a space.

    Attributes:
        key: its name in a batch.
        path: how to reach it in what the env returns, index by index.
        shape: shape of one env's value.
        dtype: dtype in a batch; float64 observations are kept as float32.
        space: the gymnasium space of one env's value.
    """

    key: Key
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    space: spaces.Space[Any]


def observation_leaves(space: spaces.Space[Any], *, exact: bool = False) -> tuple[Leaf, ...]:
    """Leaves of an observation space; root entries of a Dict get its own keys.

    Args:
        space: the space.
        exact: leaves keep the dtypes of their space, and their keys stand below `"observation"`, whatever they are.

    Raises:
        TypeError: a space of another kind.
        ValueError: a Dict key that a batch needs for itself, two entries of one name, a Dict or Tuple without entries.
    """
    if exact:
        return plain_leaves(space, OBSERVATION)
    leaves = tuple(_narrow(leaf) for leaf in _walk(space, (), (), OBSERVATION))
    keys = [leaf.key for leaf in leaves]
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"observation space {space} has several entries named {twice}; rename them in the env")
    taken = sorted(
        {str(leaf.key) for leaf in leaves if (leaf.key if isinstance(leaf.key, str) else leaf.key[0]) in RESERVED}
    )
    if taken:
        raise ValueError(f"observation keys {taken} clash with entries of every batch; rename them in the env")
    return leaves


def action_leaves(space: spaces.Space[Any]) -> tuple[Leaf, ...]:
    """Leaves of an action space: `"action"`, `("action", name)` for Dict and `("action", "0")` for Tuple spaces.

    Raises:
        TypeError: a space of another kind.
        ValueError: a Dict or Tuple without entries.
    """
    return plain_leaves(space, ACTION)


def plain_leaves(space: spaces.Space[Any], name: str) -> tuple[Leaf, ...]:
    """Leaves in order, each in its space's own dtype, under any keys: `name`, `(name, key)` or `(name, "0")`.

    Raises:
        TypeError: a space of another kind.
        ValueError: a Dict or Tuple without entries.
    """
    return tuple(_walk(space, (name,), (), name, numbered=True))


def packer(leaves: Sequence[Leaf]) -> Callable[[Sequence[Any]], Leaves]:
    """How to turn B observations, as envs return them, into one fresh array `[B, …]` per leaf."""
    if len(leaves) == 1 and not leaves[0].path:
        return _pack_one(leaves[0])
    packs = [(_getter(leaf.path), _pack_one(leaf)) for leaf in leaves]
    return lambda rows: [array for get, pack in packs for array in pack([get(row) for row in rows])]


def splitter(space: spaces.Space[Any], num_envs: int, *, writable: bool = True) -> Callable[[Leaves], Sequence[Any]]:
    """How to turn action leaves `[B, …]` into one action per env, as `env.step` wants it.

    Arrays are the env's own, which it may write into; or, if not `writable`, views that refuse it.
    """
    if isinstance(space, spaces.Dict):
        names = list(space.spaces)
        parts = _parts([space.spaces[name] for name in names], num_envs, writable=writable)
        return lambda leaves: [dict(zip(names, row, strict=True)) for row in parts(leaves)]
    if isinstance(space, spaces.Tuple):
        return _parts(space.spaces, num_envs, writable=writable)
    if isinstance(space, spaces.Box) and space.shape == ():
        rows = _own_rows(space) if writable else _read_only_rows(space)
        return lambda leaves: [row.reshape(()) for row in rows([leaves[0].reshape(-1, 1)])]
    return _own_rows(space) if writable else _read_only_rows(space)


def joiner(space: spaces.Space[Any]) -> Callable[[Leaves], Any]:
    """How to turn action leaves `[B, …]` into the batched action of a vector env whose one-env space is `space`."""
    if isinstance(space, spaces.Dict):
        counts = [count_leaves(part) for part in space.spaces.values()]
        joins = [joiner(part) for part in space.spaces.values()]
        return lambda leaves: {
            name: join(part) for name, join, part in zip(space.spaces, joins, _cut(leaves, counts), strict=True)
        }
    if isinstance(space, spaces.Tuple):
        counts = [count_leaves(part) for part in space.spaces]
        joins = [joiner(part) for part in space.spaces]
        return lambda leaves: tuple(join(part) for join, part in zip(joins, _cut(leaves, counts), strict=True))
    dtype = space.dtype
    return lambda leaves: leaves[0].astype(dtype)


def count_leaves(space: spaces.Space[Any]) -> int:
    """How many leaves a served space has."""
    return len(action_leaves(space))


def _walk(
    space: spaces.Space[Any], key: tuple[str, ...], path: tuple[Hashable, ...], name: str, *, numbered: bool = False
) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict | spaces.Tuple) and not space.spaces:
        raise ValueError(f"{name} space {space} at {_place(path)} has no entries; give it one, or leave it out")
    if isinstance(space, spaces.Dict):
        for part, inner in space.spaces.items():
            yield from _walk(inner, (*key, str(part)), (*path, part), name, numbered=numbered)
    elif isinstance(space, spaces.Tuple):
        for i, inner in enumerate(space.spaces):
            yield from _walk(inner, _indexed(key, name, i, numbered=numbered), (*path, i), name, numbered=numbered)
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        assert space.shape is not None
        yield Leaf(as_key(key or (name,)), path, tuple(space.shape), np.dtype(space.dtype), space)
    else:
        raise TypeError(
            f"{name} space {space} at {_place(path)} cannot be served; "
            f"served are {SERVED}; wrap the env to turn it into one of these"
        )


def _place(path: tuple[Hashable, ...]) -> str:
    return ".".join(map(str, path)) or "the root"


def _indexed(key: tuple[str, ...], name: str, index: int, *, numbered: bool) -> tuple[str, ...]:
    if numbered:
        return (*key, str(index))
    head, last = (key[:-1], key[-1]) if key else ((), name)
    return (*head, f"{last}_{index}")


def _narrow(leaf: Leaf) -> Leaf:
    if leaf.dtype != np.float64:
        return leaf
    return Leaf(leaf.key, leaf.path, leaf.shape, np.dtype(np.float32), leaf.space)


def _getter(path: tuple[Any, ...]) -> Callable[[Any], Any]:
    return lambda value: reduce(getitem, path, value)


def _pack_one(leaf: Leaf) -> Callable[[Sequence[Any]], Leaves]:
    shape, dtype = leaf.shape, leaf.dtype

    def pack(rows: Sequence[Any]) -> Leaves:
        try:
            array = np.array(rows)
        except ValueError as error:
            raise _misshapen(leaf, rows) from error
        if array.dtype is not dtype:
            array = converted(leaf, array)
        if array.shape[1:] != shape:
            raise _misshapen(leaf, rows)
        return [array]

    return pack


def converted(leaf: Leaf, observed: Array) -> Array:
    """What envs observed, `[B, …]`, in the dtype of its leaf; itself if it has that.

    Raises:
        TypeError: no real numbers.
        ValueError: a number that the dtype cannot hold.
    """
    if observed.dtype == leaf.dtype:
        return observed
    if observed.dtype.kind not in "biuf":
        stray = next((each for each in observed.flat if np.asarray(each).dtype.kind not in "biuf"), observed)
        plain = stray.item() if isinstance(stray, np.generic) else stray
        raise TypeError(f"the env returned {brief(plain)} for {leaf.key!r}; its observation space is {leaf.space}")
    lost = first_lost(observed, leaf.dtype)
    if lost is not None:
        raise ValueError(
            f"the env returned {lost} for {leaf.key!r}, which {leaf.dtype} cannot hold; its observation space is "
            f"{leaf.space}"
        )
    try:
        with np.errstate(over="raise"):
            return observed.astype(leaf.dtype, copy=False)
    except FloatingPointError as error:
        raise ValueError(
            f"the env returned {np.abs(observed).max()} for {leaf.key!r}, which {leaf.dtype} cannot hold; scale it in "
            "the env"
        ) from error


def first_lost(values: Array, dtype: np.dtype[Any]) -> Any:
    """The first of these numbers that another kind of dtype would change; `None` if it holds all, as floats do."""
    if dtype.kind in ("f", values.dtype.kind):
        return None
    with np.errstate(invalid="ignore"):
        lost = values[values.astype(dtype) != values]
    return lost[0] if lost.size else None


def _misshapen(leaf: Leaf, rows: Sequence[Any]) -> ValueError:
    shapes = sorted({_shape(row) for row in rows})
    if len(rows) == 1:
        return ValueError(
            f"the env returned an observation of shape {shapes[0]} for {leaf.key!r}; "
            f"its observation space says {leaf.shape}"
        )
    return ValueError(
        f"the envs returned observations of shape {', '.join(shapes)} for {leaf.key!r}; "
        f"their observation space says {leaf.shape}"
    )


def _shape(row: Any) -> str:
    try:
        return f"{np.shape(row)}"
    except ValueError:
        return "(rows of different lengths)"


def _own_rows(space: spaces.Space[Any]) -> Callable[[Leaves], Sequence[Any]]:
    """Rows that the envs may write into: the recorded actions must not change with them."""
    dtype, writable = space.dtype, not isinstance(space, spaces.Discrete)
    return lambda leaves: list(leaves[0].astype(dtype, copy=writable))


def _read_only_rows(space: spaces.Space[Any]) -> Callable[[Leaves], Sequence[Any]]:
    dtype = space.dtype

    def split(leaves: Leaves) -> Sequence[Any]:
        rows = leaves[0].astype(dtype, copy=False).view()
        rows.flags.writeable = False
        return list(rows)

    return split


def _parts(parts: Sequence[spaces.Space[Any]], num_envs: int, *, writable: bool) -> Callable[[Leaves], Sequence[Any]]:
    counts = [count_leaves(part) for part in parts]
    splits = [splitter(part, num_envs, writable=writable) for part in parts]
    return lambda leaves: list(
        zip(*(split(part) for split, part in zip(splits, _cut(leaves, counts), strict=True)), strict=True)
    )


def _cut(leaves: Leaves, counts: Sequence[int]) -> Iterator[Leaves]:
    at = 0
    for count in counts:
        yield leaves[at : at + count]
        at += count
