"""Rows of a batch one by one, in another order, or with padding.

A row of a sequence is a sequence of one row: it has the state before it, which is `state_in_…` at the beginning of its
sequence and otherwise what the row before gave out (`state_out_…`), if the batch has that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from swath.options import count
from swath.rollout_workers.batches.columns import Columns, SomeColumns, like
from swath.rollout_workers.batches.leaves import Array, Leaf, blank, map_together, rows_of, take
from swath.rollout_workers.batches.names import ColumnNames, counts_sequences, is_state_in, state_out_of
from swath.rollout_workers.batches.sequences import Sequences, check_rows
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
    of_sequence = np.repeat(np.arange(len(sequences)), sequences.lengths)
    index = of_sequence if is_state_in(name) else sequences.place_of_rows()
    return column if name == ColumnNames.SEQ_LENS else map_nest(partial(_rows, index), column)


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


def shuffle(batch: Columns, generator: np.random.Generator | None) -> None:
    """Put the rows in one random order for all columns, in place; padded sequences stay together.

    Without a generator the order is drawn from NumPy's global state, which users seed.

    Raises:
        ValueError: columns of different lengths, or sequences without padding.
    """
    check_rows(batch)
    draw: Any = np.random.permutation if generator is None else generator.permutation
    orders = _orders(Sequences.of(batch), batch.count, draw)
    dict.update(batch, {name: map_nest(partial(_reordered, orders), column) for name, column in batch.items()})


def _orders(sequences: Sequences | None, n_rows: int, draw: Any) -> dict[int | None, Array]:
    """The new order of columns, by their length."""
    if sequences is None:
        return {n_rows: draw(n_rows)}
    if sequences.stride is None:
        raise ValueError("rows of sequences cannot be shuffled; after right_zero_pad() whole sequences can")
    order = draw(len(sequences))
    places = order[:, None] * sequences.stride + np.arange(sequences.stride)
    return {len(sequences): order, sequences.places: places.reshape(-1)}


def _reordered(orders: dict[int | None, Array], leaf: Leaf) -> Leaf:
    rows = rows_of(leaf)
    return leaf if rows is None else take(leaf, orders[rows])


def right_zero_pad(batch: Columns, max_seq_len: int) -> None:
    """Let each sequence take `max_seq_len` places, in place; object rows are filled with None.

    Raises:
        ValueError: no `seq_lens`, a longer sequence, columns of different lengths, or another padding already.
    """
    stride = count("max_seq_len", max_seq_len)
    sequences = Sequences.of(batch)
    if sequences is None:
        raise ValueError(f"right_zero_pad() needs 'seq_lens'; this batch has only {sorted(batch)}")
    check_rows(batch)
    if sequences.stride is not None:
        if sequences.stride != stride:
            raise ValueError(
                f"the sequences are padded to {sequences.stride} already; pad the batch they are from to {stride}"
            )
        return
    if sequences.lengths.max(initial=0) > stride:
        raise ValueError(
            f"max_seq_len={stride}, but there is a sequence of {sequences.lengths.max()} rows; use at least that"
        )
    padded = Sequences(sequences.lengths, stride)
    dict.update(batch, {name: _padded(name, column, padded) for name, column in batch.items()})
    batch.zero_padded, batch.max_seq_len = True, stride


def _padded(name: str, column: Any, sequences: Sequences) -> Any:
    if counts_sequences(name):
        return column
    places = sequences.place_of_rows()

    def spread(leaf: Leaf) -> Leaf:
        return leaf if rows_of(leaf) is None else _at(places, leaf, blank(leaf, sequences.places))

    return map_nest(spread, column)


def _at(places: np.ndarray[Any, Any], leaf: Leaf, filled: Leaf) -> Leaf:
    if isinstance(filled, list):
        for place, row in zip(places.tolist(), leaf, strict=True):
            filled[place] = row
    else:
        filled[places] = leaf
    return filled
