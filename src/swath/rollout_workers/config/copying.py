"""Copies that share no container, and share everything else."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class Copied:
    """Base of what is copied by its own `copy`."""

    def copy(self) -> Any:
        """A copy that shares no container."""
        raise NotImplementedError


def copied(value: T) -> T:
    """A copy whose dicts, lists, tuples, sets, arrays and configs are new; classes, functions and spaces are shared."""
    fresh: T = _copied(value)
    return fresh


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return _refilled(copy(value), ((key, _copied(item)) for key, item in value.items()))
    if isinstance(value, list):
        return _refilled(copy(value), enumerate(map(_copied, value)))
    if isinstance(value, tuple):
        items = map(_copied, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, np.ndarray | Copied):
        return value.copy()
    return copy(value) if isinstance(value, set) else value


def _refilled(fresh: Any, items: Iterable[tuple[Any, Any]]) -> Any:
    """The shallow copy, whatever its class needs to be built, with copies in place of what it shares."""
    for key, item in items:
        fresh[key] = item
    return fresh
