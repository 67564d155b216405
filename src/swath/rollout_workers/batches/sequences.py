"""What `seq_lens` says about the rows of a batch, and whether its columns fit together.

seq_lens 2 3 1     rows  a a b b b c            not padded: one sequence behind the other
                   rows  a a . b b b c . .      padded to 3: each takes as many places
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from swath.rollout_workers.batches.columns import Columns
from swath.rollout_workers.batches.leaves import Array, as_array, leaves, rows_of
from swath.rollout_workers.batches.names import ColumnNames, is_state_in


@dataclass(frozen=True)
class Sequences:
    """How rows are divided into sequences.

    Attributes:
        lengths: rows of each, `[n]`.
        stride: places that each takes; None if they take as many as they have rows.
    """

    lengths: Array
    stride: int | None = None

    @classmethod
    def of(cls, batch: Columns) -> Sequences | None:
        """The sequences of a batch; None if it has none."""
        seq_lens = dict.get(batch, ColumnNames.SEQ_LENS)
        if seq_lens is None:
            return None
        lengths = as_array(seq_lens).astype(np.int64).reshape(-1)
        return cls(lengths, batch.max_seq_len if batch.zero_padded else None)

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def ends(self) -> Array:
        """Behind which row each sequence ends, `[n]`."""
        return np.cumsum(self.lengths)

    @property
    def starts(self) -> Array:
        """At which row each sequence begins, `[n]`."""
        return self.ends - self.lengths

    @property
    def total(self) -> int:
        """Rows of all."""
        return int(self.lengths.sum())

    @property
    def places(self) -> int:
        """Rows that a column has: as many as there are, or with those behind the ends."""
        return self.total if self.stride is None else len(self) * self.stride

    def place_of_rows(self) -> Array:
        """Where in a column each row is, `[total]`."""
        begins = self.starts if self.stride is None else np.arange(len(self)) * self.stride
        places: Array = np.arange(self.total) + np.repeat(begins - self.starts, self.lengths)
        return places

    def before(self, row: int) -> int:
        """How many sequences lie wholly before a row."""
        return int(np.searchsorted(self.ends, row, side="right")) if row > 0 else 0

    def place(self, sequence: int) -> int:
        """Where in a column a sequence begins, or would begin behind the last one."""
        return int(self.lengths[:sequence].sum()) if self.stride is None else sequence * self.stride


def place_of_rows(batch: Columns) -> Array:
    """Where in the columns of a batch each of its rows is, `[count]`."""
    sequences = Sequences.of(batch)
    return np.arange(batch.count) if sequences is None else sequences.place_of_rows()


def check_lengths(batch: Columns) -> None:
    """Raise `ValueError`, with names and lengths, unless all columns with a leading dimension are equally long.

    With `seq_lens` that is the sum of its numbers, or the places of padded sequences; `state_in_…` then have one row
    per sequence.
    """
    if _are_plainly_even(batch):
        return
    lengths = {path: rows for path, rows in _lengths(batch).items() if path[0] != ColumnNames.SEQ_LENS}
    sequences = Sequences.of(batch)
    if sequences is None or batch.time_major:
        wanted = {next(iter(lengths.values()), 0)}
        fit = all(rows in wanted for path, rows in lengths.items() if sequences is None or not is_state_in(path[0]))
    else:
        fit = all(
            rows == (len(sequences) if is_state_in(path[0]) else sequences.places) for path, rows in lengths.items()
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
    return (
        f"columns do not fit seq_lens: {len(sequences)} sequences take {sequences.places} rows, padding included; "
        f"{named}; every column needs one row per place, state_in_… one per sequence"
    )


def _named(path: tuple[str, ...]) -> str:
    return "/".join(map(str, path))
