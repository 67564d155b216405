"""Gymnasium spaces as flat lists of leaves: which entries an env has, and how to reach them.

    Dict(a=Box, b=Tuple(Discrete, Box))  ──▶  Leaf("a"), Leaf("b_0"), Leaf("b_1")

A leaf is one array per env. Leaves keep their order for the life of a host, so that the loop passes plain lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from reprlib import repr as brief
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from swath.keys import ACTION, OBSERVATION, RESERVED, Key, as_key, as_tuple

Array: TypeAlias = npt.NDArray[Any]
# One array (or tensor) `[B, …]` per leaf.
Leaves: TypeAlias = list[Any]

# Keys or indices, from the outside in.
Path: TypeAlias = tuple[Any, ...]

Pack: TypeAlias = Callable[[Sequence[Any]], Leaves]
Split: TypeAlias = Callable[[Leaves], Sequence[Any]]


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
    path: Path
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
    leaves = tuple(_walk(space, (), (), OBSERVATION, numbered=False))
    keys = [leaf.key for leaf in leaves]
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"observation space {space} has several entries named {twice}; rename them in the env")
    taken = sorted({str(key) for key in keys if as_tuple(key)[0] in RESERVED})
    if taken:
        raise ValueError(f"observation keys {taken} clash with entries of every batch; rename them in the env")
    float32 = np.dtype(np.float32)
    return tuple(replace(leaf, dtype=float32) if leaf.dtype == np.float64 else leaf for leaf in leaves)


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


def packer(leaves: Sequence[Leaf]) -> Pack:
    """How to turn B observations, as envs return them, into one fresh array `[B, …]` per leaf."""
    each = [(leaf.path, _pack_one(leaf)) for leaf in leaves]
    if not leaves[0].path:
        pack_all = each[0][1]
        return lambda rows: [pack_all(rows)]
    return lambda rows: [pack([reduce(getitem, path, row) for row in rows]) for path, pack in each]


def unpacker(leaves: Sequence[Leaf], num_envs: int) -> Callable[[Any], Leaves]:
    """How to copy a vector env's observation, which it may overwrite, into one array `[B, …]` per leaf."""
    each = [(leaf.path, _pack_one(leaf, num_envs)) for leaf in leaves]
    return lambda batch: [pack(reduce(getitem, path, batch)) for path, pack in each]


def splitter(space: spaces.Space[Any], *, writable: bool = True) -> Split:
    """How to turn action leaves `[B, …]` into one action per env, as `env.step` wants it.

    Arrays are the env's own, which it may write into; or, if not `writable`, views that refuse it.
    """
    splits = [_rows_of(leaf.space, writable=writable) for leaf in action_leaves(space)]
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda leaves: splits[0](leaves[0])
    return lambda leaves: [
        structured(space, iter(row))
        for row in zip(*(split(leaf) for split, leaf in zip(splits, leaves, strict=False)), strict=True)
    ]


def joiner(space: spaces.Space[Any]) -> Callable[[Leaves], Any]:
    """How to turn action leaves `[B, …]` into the batched action of a vector env whose one-env space is `space`."""
    dtypes = [leaf.dtype for leaf in action_leaves(space)]
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda leaves: leaves[0].astype(dtypes[0])
    return lambda leaves: structured(space, (leaf.astype(to) for leaf, to in zip(leaves, dtypes, strict=False)))


def structured(space: spaces.Space[Any], values: Iterator[Any]) -> Any:
    """One value per leaf, in their order, as dicts and tuples in the structure of the space."""
    if isinstance(space, spaces.Dict):
        return {name: structured(part, values) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(structured(part, values) for part in space.spaces)
    return next(values)


def _walk(space: spaces.Space[Any], key: Path, path: Path, name: str, *, numbered: bool) -> Iterator[Leaf]:
    place = ".".join(map(str, path)) or "the root"
    if isinstance(space, spaces.Dict | spaces.Tuple):
        if not space.spaces:
            raise ValueError(f"{name} space {space} at {place} has no entries; give it one, or leave it out")
        *outer, last = key or (name,)
        for part, inner in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            joined = isinstance(space, spaces.Tuple) and not numbered
            below = (*outer, f"{last}_{part}") if joined else (*key, str(part))
            yield from _walk(inner, below, (*path, part), name, numbered=numbered)
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield Leaf(as_key(key or (name,)), path, tuple(space.shape or ()), np.dtype(space.dtype), space)
    else:
        served = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple (nested)"
        raise TypeError(f"{name} space {space} at {place} cannot be served; served are {served}; wrap the env")


def _pack_one(leaf: Leaf, num_envs: int | None = None) -> Callable[[Any], Array]:
    shape, dtype = leaf.shape, leaf.dtype

    def pack(rows: Any) -> Array:
        try:
            array = np.array(rows, order="C")
        except ValueError as error:
            raise _misshapen(leaf, "(rows of different lengths)") from error
        if array.dtype is not dtype:
            array = converted(leaf, array)
        if array.shape[1:] != shape:
            raise _misshapen(leaf, array.shape[1:])
        if num_envs is not None and len(array) != num_envs:
            raise ValueError(f"the env returned {len(array)} observations for {leaf.key!r}, but has {num_envs} envs")
        return array

    return pack


def converted(leaf: Leaf, observed: Array) -> Array:
    """What envs observed, `[B, …]`, in the dtype of its leaf; itself if it has that.

    Raises:
        TypeError: no real numbers.
        ValueError: a number that the dtype cannot hold.
    """
    if observed.dtype == leaf.dtype:
        return observed
    space = f"its observation space is {leaf.space}"
    if observed.dtype.kind not in "biuf":
        stray = next((each for each in observed.ravel().tolist() if np.asarray(each).dtype.kind not in "biuf"), None)
        raise TypeError(f"the env returned {brief(stray)} for {leaf.key!r}; {space}")
    lost = first_lost(observed, leaf.dtype)
    if lost is None:
        try:
            with np.errstate(over="raise"):
                return observed.astype(leaf.dtype, copy=False)
        except FloatingPointError:
            lost = np.abs(observed).max()
    raise ValueError(f"the env returned {lost} for {leaf.key!r}, which {leaf.dtype} cannot hold; {space}")


def first_lost(values: Array, dtype: np.dtype[Any]) -> Any:
    """The first of these numbers that another kind of dtype would change; `None` if it holds all, as floats do."""
    if dtype.kind in ("f", values.dtype.kind):
        return None
    with np.errstate(invalid="ignore"):
        lost = values[values.astype(dtype) != values]
    return lost[0] if lost.size else None


def _misshapen(leaf: Leaf, shape: Any) -> ValueError:
    return ValueError(f"the env returned an observation of shape {shape} for {leaf.key!r}; its space says {leaf.shape}")


def _rows_of(space: spaces.Space[Any], *, writable: bool) -> Callable[[Array], Sequence[Any]]:
    """How to turn a leaf `[B, …]` into one value per env; the recorded actions must not change with them."""
    dtype, copies = space.dtype, writable and not isinstance(space, spaces.Discrete)
    is_number = isinstance(space, spaces.Box) and space.shape == ()

    def split(leaf: Array) -> Sequence[Any]:
        rows = leaf.astype(dtype, copy=copies)
        if not writable:
            rows = rows.view()
            rows.flags.writeable = False
        return [rows[env, ...] for env in range(len(rows))] if is_number else list(rows)

    return split
