"""Where a value is not what its space says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from swath.keys import OBSERVATION, Key
from swath.rollout.spaces import Leaf, plain_leaves


@dataclass(frozen=True)
class Misfit:
    """One way in which a value is not of its space.

    Attributes:
        kind: which way.
        key: of the entry.
        value: what it is.
        wanted: what the space says.
    """

    kind: Literal["missing", "dtype", "shape", "finite", "bounds"]
    key: Key
    value: str
    wanted: str


def misfits(value: Any, space: spaces.Space[Any]) -> Iterator[Misfit]:
    """The first misfit of each entry, in order.

    Raises:
        TypeError: a space that is not served.
        ValueError: a Dict or Tuple without entries.
    """
    for leaf in plain_leaves(space, OBSERVATION):
        try:
            entry = reduce(getitem, leaf.path, value)
        except (KeyError, IndexError, TypeError):
            yield Misfit("missing", leaf.key, f"{type(value).__name__} without it", f"{leaf.space}")
            continue
        misfit = _misfit(entry, leaf)
        if misfit:
            yield misfit


def _misfit(entry: Any, leaf: Leaf) -> Misfit | None:
    array = np.asarray(entry)
    if not _is_kind(entry, array, leaf):
        return Misfit("dtype", leaf.key, f"{_kind(entry, array)}", f"{leaf.dtype}")
    if array.shape != leaf.shape:
        return Misfit("shape", leaf.key, f"shape {array.shape}", f"shape {leaf.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return Misfit("finite", leaf.key, "NaN or infinite numbers", "finite numbers")
    if isinstance(leaf.space, spaces.Box):
        return _beyond(array, leaf, leaf.space)
    if not leaf.space.contains(entry):
        return Misfit("bounds", leaf.key, f"{entry}", f"{leaf.space}")
    return None


def _is_kind(entry: Any, array: Any, leaf: Leaf) -> bool:
    """Whether the dtype is the space's; a Discrete takes any whole number."""
    if isinstance(leaf.space, spaces.Discrete):
        return array.dtype.kind in "iu"
    return isinstance(entry, np.ndarray | np.generic) and array.dtype == leaf.dtype


def _kind(entry: Any, array: Any) -> str:
    return str(array.dtype) if isinstance(entry, np.ndarray | np.generic) else type(entry).__name__


def _beyond(array: Any, leaf: Leaf, space: spaces.Box) -> Misfit | None:
    beyond = (array < space.low) | (array > space.high)
    if not beyond.any():
        return None
    at = tuple(int(place[0]) for place in beyond.nonzero())
    where = f" at {list(at)}" if at else ""
    return Misfit("bounds", leaf.key, f"{array[at]:g}{where}", f"{space.low[at]:g} to {space.high[at]:g}")
