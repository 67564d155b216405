"""Single rows of a batch, one by one or in any order.

A row of a sequence is a sequence of one row: it has the state before it, which is `state_in_…` at the beginning of its
sequence and otherwise what the row before gave out (`state_out_…`), if the batch has that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from swath.rollout_workers.batches.columns import Columns, SomeColumns, like
from swath.rollout_workers.batches.leaves import Array, Leaf, map_together, rows_of, take
from swath.rollout_workers.batches.lengths import check_rows
from swath.rollout_workers.batches.names import ColumnNames, is_state_in, state_out_of
from swath.rollout_workers.batches.sequences import Sequences
from swath.rollout_workers.batches.slices import seq_lens_like
from swath.rollout_workers.nests import map_nest


def rows(batch: Columns) -> Iterator[dict[str, Any]]:
    """Each row as a dict, in order; `seq_lens` is 1 in each.

    Raises:
        ValueError: columns of different lengths.
    """
    columns = row_by_row(batch)
    for i in range(batch.count):
        yield {name: map_nest(partial(_row, i), column) for name, column in columns.items()}


def rows_at(batch: SomeColumns, index: Array) -> SomeColumns:
    """These rows, copied.

    Raises:
        ValueError: columns of different lengths.
    """
    made = like(batch, {name: map_nest(partial(_rows, index), column) for name, column in row_by_row(batch).items()})
    made.zero_padded = False
    return made


def row_by_row(batch: Columns) -> dict[str, Any]:
    """The columns without padding, with lengths and states for every row instead of every sequence.

    Raises:
        ValueError: columns of different lengths.
    """
    check_rows(batch)
    sequences = Sequences.of(batch)
    if sequences is None:
        return dict(batch)
    columns = {name: _per_row(name, column, sequences) for name, column in batch.items()}
    for name in filter(is_state_in, batch):
        columns[name] = _states(columns[name], columns.get(state_out_of(name)), sequences)
    columns[ColumnNames.SEQ_LENS] = seq_lens_like(batch, np.ones(sequences.total))
    return columns


def _per_row(name: str, column: Any, sequences: Sequences) -> Any:
    places, of_sequence = sequences.place_of_rows(), np.repeat(np.arange(len(sequences)), sequences.lengths)

    def spread(leaf: Leaf) -> Leaf:
        by_sequence = is_state_in(name) and rows_of(leaf) == len(sequences)
        return _rows(of_sequence if by_sequence else places, leaf)

    return column if name == ColumnNames.SEQ_LENS else map_nest(spread, column)


def _states(first: Any, after: Any, sequences: Sequences) -> Any:
    """The state before each row, of those at the beginnings of its sequences and those after rows."""
    if after is None:
        return first
    inside = np.setdiff1d(np.arange(sequences.total), sequences.starts)

    def mixed(pair: list[Leaf]) -> Leaf:
        states, given_out = pair
        states[inside] = given_out[inside - 1]
        return states

    return map_together(mixed, [first, after])


def _row(i: int, leaf: Leaf) -> Leaf:
    return leaf if rows_of(leaf) is None else leaf[i]


def _rows(index: Array, leaf: Leaf) -> Leaf:
    return leaf if rows_of(leaf) is None else take(leaf, index)
