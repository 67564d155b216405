"""Whether the columns of a batch fit together."""

from __future__ import annotations

import numpy as np

from swath.rollout_workers.batches.columns import Columns
from swath.rollout_workers.batches.leaves import leaves, rows_of
from swath.rollout_workers.batches.names import ColumnNames, is_state_in
from swath.rollout_workers.batches.sequences import Sequences


def check_lengths(batch: Columns) -> None:
    """Raise `ValueError`, with names and lengths, unless all columns with a leading dimension are equally long.

    With `seq_lens` that is the sum of its numbers, or the places of padded sequences; `state_in_…` then have one row
    per sequence, or one per transition.
    """
    if _are_plainly_even(batch):
        return
    lengths = {path: rows for path, rows in _lengths(batch).items() if path[0] != ColumnNames.SEQ_LENS}
    sequences = Sequences.of(batch)
    if sequences is None or batch.time_major:
        wanted = {next(iter(lengths.values()), 0)}
        fit = all(rows in wanted for path, rows in lengths.items() if sequences is None or not is_state_in(path[0]))
    else:
        wanted = {sequences.places, len(sequences)}
        fit = all(
            rows == sequences.places or (is_state_in(path[0]) and rows in wanted) for path, rows in lengths.items()
        )
    if not fit:
        raise ValueError(_message(lengths, sequences))


def check_rows(batch: Columns) -> None:
    """Raise `ValueError` unless the columns are equally long and can be taken apart by rows."""
    check_lengths(batch)
    if batch.time_major and ColumnNames.SEQ_LENS in batch:
        raise ValueError("the columns of this batch are [T, B, …] (time_major); make them [B·T, …] to take rows of it")


def _are_plainly_even(batch: Columns) -> bool:
    """Whether all columns are arrays of one length, as most are: the quick way to know that nothing is wrong."""
    lengths = {column.shape[:1] if isinstance(column, np.ndarray) else None for column in batch.values()}
    return len(lengths) == 1 and not lengths & {None, ()} and ColumnNames.SEQ_LENS not in batch


def _lengths(batch: Columns) -> dict[tuple[str, ...], int]:
    found = {}
    for name, column in batch.items():
        for path, leaf in leaves(column, (name,)):
            rows = rows_of(leaf)
            if rows is not None:
                found[path] = rows
    return found


def _message(lengths: dict[tuple[str, ...], int], sequences: Sequences | None) -> str:
    named = ", ".join(f"{_named(path)}: {rows}" for path, rows in lengths.items())
    if sequences is None:
        return f"columns of different lengths: {named}; every column needs one row per transition"
    padded = "" if sequences.stride is None else f", padded to {sequences.places} places"
    return (
        f"columns do not fit seq_lens, which says {sequences.total} rows in {len(sequences)} sequences{padded}: "
        f"{named}; every column needs one row per place, state_in_… one per sequence"
    )


def _named(path: tuple[str, ...]) -> str:
    return "/".join(map(str, path))
