"""Sequences with zeros behind their ends, so that all are equally long."""

from __future__ import annotations

from typing import Any

import numpy as np

from swath.options import count
from swath.rollout_workers.batches.columns import Columns
from swath.rollout_workers.batches.leaves import Leaf, blank, rows_of
from swath.rollout_workers.batches.lengths import check_rows
from swath.rollout_workers.batches.names import ColumnNames, is_state_in
from swath.rollout_workers.batches.sequences import Sequences
from swath.rollout_workers.nests import map_nest


def right_zero_pad(batch: Columns, max_seq_len: int, *, exclude_states: bool) -> None:
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
    dict.update(batch, {name: _padded(name, column, padded, exclude_states) for name, column in batch.items()})
    batch.zero_padded, batch.max_seq_len = True, stride


def _padded(name: str, column: Any, sequences: Sequences, exclude_states: bool) -> Any:
    if name == ColumnNames.SEQ_LENS or (exclude_states and is_state_in(name)):
        return column
    places = sequences.place_of_rows()

    def spread(leaf: Leaf) -> Leaf:
        rows = rows_of(leaf)
        if rows is None:
            return leaf
        if rows != len(places):
            raise ValueError(
                f"column {name!r} has one row per sequence and cannot be padded; leave exclude_states=True"
            )
        return _at(places, leaf, blank(leaf, sequences.places))

    return map_nest(spread, column)


def _at(places: np.ndarray[Any, Any], leaf: Leaf, filled: Leaf) -> Leaf:
    if isinstance(filled, list):
        for place, row in zip(places.tolist(), leaf, strict=True):
            filled[place] = row
    else:
        filled[places] = leaf
    return filled
