"""Columns that grow by rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.nests import map_nest

_FIRST_ROOM = 64


class Stack:
    """A nest of arrays `[n, …]` that is written row by row, and whose room is used again.

    Args:
        what: the rows are, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._room = 0
        self._columns: Any = None

    def write(self, rows: slice | list[int], values: Any) -> None:
        """Put values in the place of rows, which there may not have been yet.

        Args:
            rows: where to.
            values: a nest of arrays, one entry per row.

        Raises:
            ValueError: they have another shape or structure than those before.
        """
        self._reserve(rows.stop if isinstance(rows, slice) else max(rows) + 1, values)
        try:
            _put_nest(self._columns, rows, values)
        except ValueError as error:
            raise ValueError(f"{self._what} do not fit those before: {error}") from error

    def take(self, rows: Array | slice | list[int]) -> Any:
        """Copies of rows, in a nest as it was written."""
        if isinstance(rows, slice):
            return map_nest(lambda column: column[rows].copy(), self._columns)
        return map_nest(lambda column: column[rows], self._columns)  # an index copies

    def keep(self, rows: Array) -> None:
        """Only these rows, in rising order, stay as the first ones; the others are written over."""
        there = rows[rows < self._room]  # nothing was written yet to those behind
        if len(there):
            map_nest(lambda column: _put(column, slice(0, len(there)), column[there]), self._columns)

    def _reserve(self, n_rows: int, like: Any) -> None:
        if n_rows <= self._room and self._columns is not None:
            return
        room = max(n_rows, 2 * self._room, _FIRST_ROOM)
        before = self._columns
        self._columns = map_nest(
            lambda leaf: np.zeros((room, *leaf.shape[1:]), leaf.dtype), like if before is None else before
        )
        if before is not None:
            map_nest(lambda column, old: _put(column, slice(0, len(old)), old), self._columns, before)
        self._room = room


def _put_nest(columns: Any, rows: slice | list[int], values: Any) -> None:
    """As quick as can be, for it is done in every step."""
    if isinstance(columns, np.ndarray):
        _put(columns, rows, np.asarray(values))
        return
    if len(columns) != len(values):
        raise ValueError(f"nested differently: {len(values)} parts, wanted {len(columns)}")
    for name, column in columns.items() if isinstance(columns, dict) else enumerate(columns):
        if isinstance(columns, dict) and name not in values:
            raise ValueError(f"there is no {name!r}")
        _put_nest(column, rows, values[name])


def _put(column: Array, rows: slice | list[int], values: Array) -> None:
    if values.shape[1:] != column.shape[1:]:
        raise ValueError(f"shape {values.shape[1:]} per row, wanted {column.shape[1:]}")
    column[rows] = values
