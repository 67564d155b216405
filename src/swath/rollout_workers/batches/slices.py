"""Stretches of a batch: views of its columns.

b[1:4]          whole sequences: bounds snap down to where one starts
slice(1, 4)     exactly these rows: the sequences at both ends are cut
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from swath.options import count
from swath.rollout_workers.batches.columns import Columns, SomeColumns, like
from swath.rollout_workers.batches.leaves import Array, Leaf, blank, joined, map_together, rows_of
from swath.rollout_workers.batches.lengths import check_rows
from swath.rollout_workers.batches.names import ColumnNames, counts_sequences, is_state_in, state_out_of
from swath.rollout_workers.batches.sequences import Sequences
from swath.rollout_workers.nests import map_nest


@dataclass(frozen=True)
class Stretch:
    """What to take of a batch.

    Attributes:
        places: of the columns that have one row per transition.
        sequences: of those that have one row per sequence; None if there are none.
        n_sequences: how many the batch has.
    """

    places: slice
    sequences: slice | None = None
    n_sequences: int = 0

    def of(self, batch: SomeColumns) -> SomeColumns:
        """These rows, as views."""
        return like(batch, {name: map_nest(self._cut(name), column) for name, column in batch.items()})

    def _cut(self, name: str) -> Callable[[Leaf], Leaf]:
        return lambda leaf: self._rows(leaf, by_sequence=counts_sequences(name))

    def _rows(self, leaf: Leaf, *, by_sequence: bool) -> Leaf:
        rows = rows_of(leaf)
        if rows is None:
            return leaf
        if self.sequences is not None and by_sequence and rows == self.n_sequences:
            return leaf[self.sequences]
        return leaf[self.places]


def part(batch: SomeColumns, bounds: slice) -> SomeColumns:
    """`batch[i:j]`, with Python's bounds; with `seq_lens` they snap down to starts of sequences.

    Raises:
        ValueError: a step other than 1, or columns of different lengths.
    """
    if bounds.step not in (None, 1):
        raise ValueError(
            f"step {bounds.step} of a slice of a batch must be 1; take every n-th row of the columns instead"
        )
    check_rows(batch)
    start, stop, _ = bounds.indices(batch.count)
    sequences = Sequences.of(batch)
    if sequences is None:
        return Stretch(slice(start, max(start, stop))).of(batch)
    first, last = sequences.before(start), sequences.before(max(start, stop))
    places = slice(sequences.place(first), sequences.place(last))
    return Stretch(places, slice(first, last), len(sequences)).of(batch)


@dataclass(frozen=True)
class Span:
    """Rows `start` to `end` of a batch, exactly, behind `front` rows of zeros."""

    start: int
    end: int
    front: int = 0

    @classmethod
    def of(cls, start: int, end: int, n_rows: int) -> Span:
        """As `slice(start, end)` is meant: a negative start asks for zeros in front.

        Raises:
            ValueError: a negative end, or bounds that are no integers.
        """
        start, end = count("start", start, least=None), count("end", end, least=0)
        first = min(max(start, 0), n_rows)
        return cls(first, max(first, min(end, n_rows)), max(-start, 0))

    def __len__(self) -> int:
        return self.front + self.end - self.start


def exact(batch: SomeColumns, span: Span, states: tuple[int, int] | None = None) -> SomeColumns:
    """Exactly these rows.

    Args:
        batch: whose rows.
        span: which.
        states: the sequences that they are said to be from, first and behind last; found out if None.

    Raises:
        ValueError: columns of different lengths, padded sequences, or sequences with other rows than were asked for.
    """
    check_rows(batch)
    sequences = Sequences.of(batch)
    if sequences is None:
        return _behind_zeros(Stretch(slice(span.start, span.end)).of(batch), span.front)
    if sequences.stride is not None:
        raise ValueError("of padded sequences only whole ones can be taken; use batch[i:j], or slice before padding")
    first, last = _sequences_in(sequences, span) if states is None else states
    made = Stretch(slice(span.start, span.end), slice(first, last), len(sequences)).of(batch)
    made = _behind_zeros(made, span.front)
    if states is None:
        lengths = _lengths_in(sequences, span, slice(first, last))
        if first < last and sequences.starts[first] < span.start:
            dict.update(made, _states_at(span.start, batch, made))
    else:
        lengths = _fitted(sequences.lengths[first:last], len(span))
    dict.__setitem__(made, ColumnNames.SEQ_LENS, seq_lens_like(batch, lengths))
    return made


def seq_lens_like(batch: Columns, lengths: Array) -> Leaf:
    """New `seq_lens`, of the kind and dtype that the batch has."""
    given = dict.__getitem__(batch, ColumnNames.SEQ_LENS)
    if isinstance(given, torch.Tensor):
        return torch.as_tensor(lengths, dtype=given.dtype, device=given.device)
    return lengths.astype(given.dtype)


def _sequences_in(sequences: Sequences, span: Span) -> tuple[int, int]:
    first = sequences.before(span.start)
    if not len(span):
        return first, first
    last = int(np.searchsorted(sequences.starts, span.end, side="left"))
    return first, max(last, min(first + 1, len(sequences)))


def _lengths_in(sequences: Sequences, span: Span, which: slice) -> Array:
    """Rows of each sequence within the span; zeros in front belong to the first."""
    ends, starts = sequences.ends[which], sequences.starts[which]
    lengths: Array = np.minimum(ends, span.end) - np.maximum(starts, span.start)
    lengths[:1] += span.front
    return lengths


def _fitted(lengths: Array, n_rows: int) -> Array:
    """Lengths that add up to the rows: the last is shortened."""
    excess = int(lengths.sum()) - n_rows
    if excess < 0 or (excess and excess >= lengths[-1]):
        raise ValueError(
            f"{n_rows} rows cannot be from sequences of {lengths.tolist()} rows; see state_start, state_end"
        )
    return np.append(lengths[:-1], lengths[-1:] - excess)


def _states_at(row: int, batch: Columns, made: Columns) -> dict[str, Leaf]:
    """States of sequences whose first begins at this row, in its middle: what the row before gave out, if known."""
    return {
        name: map_together(lambda pair: joined([pair[0][row - 1 : row], pair[1][1:]]), [before, made_state])
        for name, made_state in made.items()
        if is_state_in(name) and (before := dict.get(batch, state_out_of(name))) is not None
    }


def _behind_zeros(batch: SomeColumns, n_rows: int) -> SomeColumns:
    if not n_rows:
        return batch

    def behind(leaf: Leaf) -> Leaf:
        return leaf if rows_of(leaf) is None else joined([blank(leaf, n_rows), leaf])

    padded = {
        name: map_nest(behind, column)
        for name, column in batch.items()
        if ColumnNames.SEQ_LENS not in batch or not counts_sequences(name)
    }
    dict.update(batch, padded)
    return batch
