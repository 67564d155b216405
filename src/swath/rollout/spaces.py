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
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from swath.errors import warn
from swath.keys import ACTION, OBSERVATION, RESERVED, Key, as_key, as_tuple

Array: TypeAlias = npt.NDArray[Any]
# One array (or tensor) `[B, …]` per leaf.
Leaves: TypeAlias = list[Any]

# Keys or indices, from the outside in.
Path: TypeAlias = tuple[Any, ...]

Pack: TypeAlias = Callable[[Sequence[Any]], Leaves]
Split: TypeAlias = Callable[[Leaves], Sequence[Any]]

# From here on float32 cannot tell neighbouring integers apart.
_FIRST_ROUNDED = 2.0**24
_NUMBERS = tuple(map(np.dtype, np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"))


@dataclass(frozen=True)
class Leaf:
    """One entry of a space.

    Attributes:
        key: its name in a batch.
        path: how to reach it in what the env returns, index by index.
        shape: shape of one env's value.
        dtype: dtype in a batch; float64 observations are kept as float32, if they are not to stay float64.
        space: the gymnasium space of one env's value.
    """

    key: Key
    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    space: spaces.Space[Any]


def observation_leaves(
    space: spaces.Space[Any], *, exact: bool = False, keep_float64: bool = False
) -> tuple[Leaf, ...]:
    """Leaves of an observation space; root entries of a Dict get its own keys.

    Args:
        space: the space.
        exact: leaves keep the dtypes of their space, and their keys stand below `"observation"`, whatever they are.
        keep_float64: leaves of float64 stay float64.

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
    if keep_float64:
        return leaves
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
    each = [(leaf.path, _pack_one(leaf, Converter(leaf))) for leaf in leaves]
    if not leaves[0].path:
        pack_all = each[0][1]
        return lambda rows: [pack_all(rows)]
    return lambda rows: [pack([reduce(getitem, path, row) for row in rows]) for path, pack in each]


def unpacker(leaves: Sequence[Leaf], converters: Sequence[Converter], num_envs: int) -> Callable[[Any], Leaves]:
    """Return a function that copies a vector env's observation, which it may overwrite, into one array per leaf."""
    each = [(leaf.path, _pack_one(leaf, convert, num_envs)) for leaf, convert in zip(leaves, converters, strict=True)]
    return lambda batch: [pack(reduce(getitem, path, batch)) for path, pack in each]


def splitter(space: spaces.Space[Any], *, writable: bool = True) -> Split:
    """How to turn action leaves `[B, …]` into one action per env, as `env.step` wants it.

    Arrays are the env's own, which it may write into; or, if not `writable`, views that refuse it.
    """
    splits = [_rows_of(leaf, writable=writable) for leaf in action_leaves(space)]
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda leaves: splits[0](leaves[0])
    return lambda leaves: [
        structured(space, iter(row))
        for row in zip(*(split(leaf) for split, leaf in zip(splits, leaves, strict=False)), strict=True)
    ]


def joiner(space: spaces.Space[Any]) -> Callable[[Leaves], Any]:
    """How to turn action leaves `[B, …]` into the batched action of a vector env whose one-env space is `space`."""
    casts = [_copying(leaf, copies=True) for leaf in action_leaves(space)]
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda leaves: casts[0](leaves[0])
    return lambda leaves: structured(space, (cast(leaf) for leaf, cast in zip(leaves, casts, strict=False)))


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


def _pack_one(leaf: Leaf, convert: Converter, num_envs: int | None = None) -> Callable[[Any], Array]:
    shape, dtype = leaf.shape, leaf.dtype

    def pack(rows: Any) -> Array:
        try:
            array = np.array(rows, order="C")
        except ValueError as error:
            raise _misshapen(leaf, "(rows of different lengths)") from error
        if array.dtype is not dtype:
            array = convert(array)
        if array.shape[1:] != shape:
            raise _misshapen(leaf, array.shape[1:])
        if num_envs is not None and len(array) != num_envs:
            raise ValueError(f"the env returned {len(array)} observations for {leaf.key!r}, but has {num_envs} envs")
        return array

    return pack


class Converter:
    """Converts numbers of envs or policies into the dtype of a leaf.

    Warns once of a value of 2**24 or more where float32 stands for the float64 of a space.

    Args:
        leaf: the entry of a space.
        source: where the numbers come from, for messages.
    """

    def __init__(self, leaf: Leaf, source: Literal["env", "policy"] = "env") -> None:
        self._source = "the env returned" if source == "env" else "the policy answered"
        self._space = f"its {'observation' if source == 'env' else 'action'} space is {leaf.space}"
        self._leaf, self._watches = leaf, leaf.dtype == np.float32 and leaf.space.dtype == np.float64
        self._held = "".join(dtype.char for dtype in _NUMBERS if _holds_all(leaf.dtype, dtype))
        self._largest = float(np.finfo(leaf.dtype).max) if leaf.dtype.char in "ef" else 0.0

    def __call__(self, values: Array) -> Array:
        """Return values `[B, …]` in the leaf's dtype; `values` itself if it has that.

        Raises:
            TypeError: no real numbers.
            ValueError: a number that the dtype cannot hold.
        """
        leaf = self._leaf
        if values.dtype == leaf.dtype:
            return values
        if values.dtype.kind not in "biuf":
            stray = next((each for each in values.ravel().tolist() if np.asarray(each).dtype.kind not in "biuf"), None)
            raise TypeError(f"{self._source} {brief(stray)} for {leaf.key!r}; {self._space}")
        if values.dtype.char not in self._held or self._watches:
            exact = values.astype(np.float64, copy=False)
            # No value is larger than the root of the sum of squares, which takes less time than any other pass.
            root = self._largest and float(np.vdot(exact, exact)) ** 0.5
            if self._watches and not root < _FIRST_ROUNDED:
                self._warn_of_large(exact)
            if not root < self._largest and (lost := first_unrepresentable(values, leaf.dtype)) is not None:
                raise ValueError(
                    f"{self._source} {lost} for {leaf.key!r}, which {leaf.dtype} cannot hold; {self._space}"
                )
        return values.astype(leaf.dtype)

    def _warn_of_large(self, exact: Array) -> None:
        large = exact[np.isfinite(exact) & (np.abs(exact) >= _FIRST_ROUNDED)]
        if large.size:
            self._watches = False
            warn(
                f"{self._source} {large[0]} for {self._leaf.key!r}, which becomes float32: from 2**24 on that cannot "
                "tell neighbouring integers apart; pass keep_float64=True to keep the float64 of its space, or "
                "subtract an offset in the env"
            )


def first_unrepresentable(values: Array, dtype: np.dtype[Any]) -> Any:
    """Return the first of these numbers that a dtype would change, or `None`; floats may round, but not overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
    lost = values[np.isinf(cast) & np.isfinite(values) if dtype.kind == "f" else cast != values]
    return lost[0] if lost.size else None


def _holds_all(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether no number of the other dtype is beyond the range of the first."""
    return np.can_cast(other, dtype) or (dtype.kind == "f" and other.kind in "biu" and dtype.itemsize > 2)


def _misshapen(leaf: Leaf, shape: Any) -> ValueError:
    return ValueError(f"the env returned an observation of shape {shape} for {leaf.key!r}; its space says {leaf.shape}")


def _copying(leaf: Leaf, *, copies: bool) -> Callable[[Array], Array]:
    """Return a function that brings actions `[B, …]` into the dtype of their space, in fresh memory if `copies`."""
    dtype, convert = leaf.dtype, Converter(leaf, "policy")
    if copies:
        return lambda actions: (actions if actions.dtype is dtype else convert(actions)).copy()
    return lambda actions: actions if actions.dtype is dtype else convert(actions)


def _rows_of(leaf: Leaf, *, writable: bool) -> Callable[[Array], Sequence[Any]]:
    """How to turn a leaf `[B, …]` into one value per env; the recorded actions must not change with them."""
    space = leaf.space
    cast = _copying(leaf, copies=writable and not isinstance(space, spaces.Discrete))
    is_number = isinstance(space, spaces.Box) and space.shape == ()

    def split(actions: Array) -> Sequence[Any]:
        rows = cast(actions)
        if not writable:
            rows = rows.view()
            rows.flags.writeable = False
        return [rows[env, ...] for env in range(len(rows))] if is_number else list(rows)

    return split
