"""Gymnasium spaces as flat lists of leaves: the entries of an env, and the paths to them.

    Dict(a=Box, b=Tuple(Discrete, Box))  ──▶  Leaf("a"), Leaf("b_0"), Leaf("b_1")

A leaf is one array per env. The order of a host's leaves never changes, so the loop passes plain lists.
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

# The least number from which float32 cannot tell neighbouring integers apart.
_FIRST_ROUNDED = 2.0**24
_NUMBERS = tuple(map(np.dtype, np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"))


@dataclass(frozen=True)
class Leaf:
    """One entry of a space.

    Attributes:
        key: its name in a batch.
        path: keys and indices that lead to it in a value of the space.
        shape: shape of one env's value.
        dtype: dtype in a batch; float32 for float64 observations, unless they stay float64.
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
    """Return the leaves of an observation space; root entries of a Dict keep their keys.

    Args:
        space: the space.
        exact: leaves keep the dtypes of their space, and any keys are allowed, below `"observation"`.
        keep_float64: leaves of float64 stay float64.

    Raises:
        TypeError: a space of another kind.
        ValueError: a Dict key that is reserved in batches, two entries of one name, a Dict or Tuple without entries.
    """
    if exact:
        return plain_leaves(space, OBSERVATION)
    leaves = tuple(_walk(space, (), (), OBSERVATION, numbered=False))
    keys = [leaf.key for leaf in leaves]
    duplicates = sorted({str(key) for key in keys if keys.count(key) > 1})
    if duplicates:
        raise ValueError(f"observation space {space} has several entries named {duplicates}; rename them in the env")
    reserved = sorted({str(key) for key in keys if as_tuple(key)[0] in RESERVED})
    if reserved:
        raise ValueError(f"observation keys {reserved} clash with entries of every batch; rename them in the env")
    if keep_float64:
        return leaves
    float32 = np.dtype(np.float32)
    return tuple(replace(leaf, dtype=float32) if leaf.dtype == np.float64 else leaf for leaf in leaves)


def action_leaves(space: spaces.Space[Any]) -> tuple[Leaf, ...]:
    """Return the leaves of an action space: `"action"`, `("action", key)` of a Dict, `("action", "0")` of a Tuple.

    Raises:
        TypeError: a space of another kind.
        ValueError: a Dict or Tuple without entries.
    """
    return plain_leaves(space, ACTION)


def plain_leaves(space: spaces.Space[Any], name: str) -> tuple[Leaf, ...]:
    """Return leaves with the dtypes of their spaces and the keys `name`, `(name, key)` or `(name, "0")`.

    Raises:
        TypeError: a space of another kind.
        ValueError: a Dict or Tuple without entries.
    """
    return tuple(_walk(space, (name,), (), name, numbered=True))


def unbounded_leaf(key: Key, shape: Sequence[int], dtype: np.dtype[Any]) -> Leaf:
    """Return the leaf of an entry that has no gymnasium space; its own is a Box without bounds."""
    shape = tuple(shape)
    return Leaf(key, (), shape, dtype, spaces.Box(-np.inf, np.inf, shape, np.float64))


def packer(leaves: Sequence[Leaf]) -> Pack:
    """Return a function that turns B observations of envs into one new array `[B, …]` per leaf."""
    packers = [(leaf.path, _leaf_packer(leaf, Converter(leaf))) for leaf in leaves]
    if not leaves[0].path:
        pack_all = packers[0][1]
        return lambda rows: [pack_all(rows)]
    return lambda rows: [pack([reduce(getitem, path, row) for row in rows]) for path, pack in packers]


def unpacker(leaves: Sequence[Leaf], converters: Sequence[Converter], num_envs: int) -> Callable[[Any], Leaves]:
    """Return a function that copies a vector env's observation, which the env may overwrite, into its leaves."""
    pairs = zip(leaves, converters, strict=True)
    packers = [(leaf.path, _leaf_packer(leaf, convert, num_envs)) for leaf, convert in pairs]
    return lambda batch: [pack(reduce(getitem, path, batch)) for path, pack in packers]


def splitter(space: spaces.Space[Any], *, writable: bool = True) -> Split:
    """Return a function that turns action leaves `[B, …]` into one action per env, for `env.step`.

    The env may write into its arrays; if not `writable`, they are read-only views.
    """
    splits = [_leaf_splitter(leaf, writable=writable) for leaf in action_leaves(space)]
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda leaves: splits[0](leaves[0])
    return lambda leaves: [
        build_value(space, iter(row))
        for row in zip(*(split(leaf) for split, leaf in zip(splits, leaves, strict=False)), strict=True)
    ]


def joiner(space: spaces.Space[Any]) -> Callable[[Leaves], Any]:
    """Return a function that turns action leaves `[B, …]` into a vector env's action; `space` is of one env."""
    casts = [_action_cast(leaf, copies=True) for leaf in action_leaves(space)]
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda leaves: casts[0](leaves[0])
    return lambda leaves: build_value(space, (cast(leaf) for leaf, cast in zip(leaves, casts, strict=False)))


def build_value(space: spaces.Space[Any], values: Iterator[Any]) -> Any:
    """Return the dicts and tuples of a space with these values, one per leaf in order."""
    if isinstance(space, spaces.Dict):
        return {name: build_value(part, values) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(build_value(part, values) for part in space.spaces)
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


def _leaf_packer(leaf: Leaf, convert: Converter, num_envs: int | None = None) -> Callable[[Any], Array]:
    shape, dtype = leaf.shape, leaf.dtype

    def pack(rows: Any) -> Array:
        try:
            array = np.array(rows, order="C")
        except ValueError as error:
            raise _shape_error(leaf, "(rows of different lengths)") from error
        if array.dtype is not dtype:
            array = convert(array)
        if array.shape[1:] != shape:
            raise _shape_error(leaf, array.shape[1:])
        if num_envs is not None and len(array) != num_envs:
            raise ValueError(f"the env returned {len(array)} observations for {leaf.key!r}, but has {num_envs} envs")
        return array

    return pack


class Converter:
    """Converts numbers of envs or policies into the dtype of a leaf.

    Warns once of a value of 2**24 or more where float32 stands for the float64 of a space.

    Args:
        leaf: the entry of a space.
        source: returns the numbers, for messages.
    """

    def __init__(self, leaf: Leaf, source: Literal["env", "policy"] = "env") -> None:
        self._source = "the env returned" if source == "env" else "the policy answered"
        self._space = f"its {'observation' if source == 'env' else 'action'} space is {leaf.space}"
        self._leaf, self._watches = leaf, leaf.dtype == np.float32 and leaf.space.dtype == np.float64
        self._safe_dtypes = "".join(dtype.char for dtype in _NUMBERS if _holds_all(leaf.dtype, dtype))
        self._largest = float(np.finfo(leaf.dtype).max) if leaf.dtype.char in "ef" else 0.0

    def __call__(self, values: Array) -> Array:
        """Return values `[B, …]` in the leaf's dtype; `values` itself if that is its dtype.

        Raises:
            TypeError: values that are not real numbers.
            ValueError: a number that the dtype cannot hold.
        """
        leaf = self._leaf
        if values.dtype == leaf.dtype:
            return values
        if values.dtype.kind not in "biuf":
            stray = next((value for value in values.ravel().tolist() if not _is_number(value)), None)
            raise TypeError(f"{self._source} {brief(stray)} for {leaf.key!r}; {self._space}")
        if values.dtype.char not in self._safe_dtypes or self._watches:
            exact = values.astype(np.float64, copy=False)
            # The root of the sum of squares is a bound for all values, and quicker than any other pass over them.
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
    """Return the first number that a dtype would change, or `None`; floats may round, but not overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
    lost = values[np.isinf(cast) & np.isfinite(values) if dtype.kind == "f" else cast != values]
    return lost[0] if lost.size else None


def _is_number(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biuf"


def _holds_all(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Tell whether all numbers of the other dtype are within the range of the first."""
    return np.can_cast(other, dtype) or (dtype.kind == "f" and other.kind in "biu" and dtype.itemsize > 2)


def _shape_error(leaf: Leaf, shape: Any) -> ValueError:
    return ValueError(f"the env returned an observation of shape {shape} for {leaf.key!r}; its space says {leaf.shape}")


def _action_cast(leaf: Leaf, *, copies: bool) -> Callable[[Array], Array]:
    """Return a function that casts actions `[B, …]` to the dtype of their space; to a copy if `copies`."""
    dtype, convert = leaf.dtype, Converter(leaf, "policy")
    if copies:
        return lambda actions: (actions if actions.dtype is dtype else convert(actions)).copy()
    return lambda actions: actions if actions.dtype is dtype else convert(actions)


def _leaf_splitter(leaf: Leaf, *, writable: bool) -> Callable[[Array], Sequence[Any]]:
    """Return a function that turns a leaf `[B, …]` into one value per env, apart from the recorded actions."""
    space = leaf.space
    cast = _action_cast(leaf, copies=writable and not isinstance(space, spaces.Discrete))
    is_number = isinstance(space, spaces.Box) and space.shape == ()

    def split(actions: Array) -> Sequence[Any]:
        rows = cast(actions)
        if not writable:
            rows = rows.view()
            rows.flags.writeable = False
        return [rows[env, ...] for env in range(len(rows))] if is_number else list(rows)

    return split
