"""Rows of batches: what `seq_lens` says about them, some of them, and batches one behind another.

seq_lens 2 3 1     rows  a a b b b c            not padded: one sequence behind the other
                   rows  a a . b b b c . .      padded to 3: each takes as many places
none               rows  a b c d e f            each row is a sequence of its own
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from swath.rollout_workers.batches.columns import Columns, SomeColumns
from swath.rollout_workers.batches.names import ColumnNames, counts_sequences, is_state_in, state_out_of
from swath.rollout_workers.nests import Array, Leaf, as_array, joined, leaves, map_nest, map_together, rows_of, take


class Sequences:
    """How rows are divided into sequences.

    Args:
        lengths: rows of each, `[n]`.
        stride: places that each takes; None if they take as many as they have rows.

    Attributes:
        starts: at which row each begins, `[n]`.
        ends: behind which row each ends, `[n]`.
        bounds: where in a column each begins, and where the last one ends, `[n + 1]`.
        of_rows: which sequence each row is of, `[rows]`.
        place_of_rows: where in a column each row is, `[rows]`.
    """

    def __init__(self, lengths: Array, stride: int | None = None) -> None:
        self.lengths, self.stride, numbers = lengths, stride, np.arange(len(lengths) + 1)
        self.ends = np.cumsum(lengths)
        self.starts = self.ends - lengths
        self.bounds = np.append(0, self.ends) if stride is None else numbers * stride
        self.of_rows = np.repeat(numbers[:-1], lengths)
        self.place_of_rows: Array = np.arange(len(self.of_rows)) + (self.bounds[:-1] - self.starts)[self.of_rows]

    @classmethod
    def of(cls, batch: Columns) -> Sequences:
        """The sequences of a batch."""
        seq_lens = dict.get(batch, ColumnNames.SEQ_LENS)
        if seq_lens is None:
            return cls(np.ones(batch.count, dtype=np.int64), 1)
        return cls(as_array(seq_lens).astype(np.int64).reshape(-1), batch.max_seq_len if batch.zero_padded else None)

    def __len__(self) -> int:
        return len(self.lengths)

    def before(self, row: int) -> int:
        """How many sequences lie wholly before a row."""
        return int(np.searchsorted(self.ends, row, side="right")) if row > 0 else 0


def check_lengths(batch: Columns) -> None:
    """Raise `ValueError`, with names and lengths, unless all columns with a leading dimension are equally long.

    With `seq_lens` that is the sum of its numbers, or the places of padded sequences; `state_in_…` then have one row
    per sequence.
    """
    has_sequences = ColumnNames.SEQ_LENS in batch
    shapes = {column.shape[:1] if isinstance(column, np.ndarray) else None for column in batch.values()}
    if len(shapes) == 1 and not shapes & {None, ()} and not has_sequences:
        return  # as in most batches
    sequences, found, rows = Sequences.of(batch), [], None
    if has_sequences and not batch.time_major:
        rows = int(sequences.bounds[-1])
    for name, column in batch.items():
        for path, leaf in leaves(column, (name,)) if name != ColumnNames.SEQ_LENS else ():
            length, of_states = rows_of(leaf), has_sequences and is_state_in(name)
            if length is not None:
                rows = length if rows is None and not of_states else rows
                found.append((path, length, len(sequences) if of_states else rows))
    if any(length != wanted for _, length, wanted in found):
        named = ", ".join(f"{'/'.join(map(str, path))}: {length}" for path, length, _ in found)
        needed = f"{rows} rows, for {len(sequences)} sequences with padding" if has_sequences else "one row per step"
        raise ValueError(f"columns of different lengths: {named}; every column needs {needed}")


def check_rows(batch: Columns) -> None:
    """Raise `ValueError` where `check_lengths` does, or if columns cannot be taken apart by rows."""
    check_lengths(batch)
    if batch.time_major and ColumnNames.SEQ_LENS in batch:
        raise ValueError("the columns of this batch are [T, B, …] (time_major); make them [B·T, …] to take rows of it")


def sequences_of(batch: Columns) -> Sequences:
    """The sequences of a batch, each row one where there are none.

    Raises:
        ValueError: columns of different lengths, or that cannot be taken apart by rows.
    """
    check_rows(batch)
    return Sequences.of(batch)


def taken(batch: SomeColumns, rows: slice | Array, of_sequences: slice | Array) -> SomeColumns:
    """These places of columns, and these of columns that have one row per sequence."""
    pick, pick_sequences = partial(take, rows=rows), partial(take, rows=of_sequences)
    if ColumnNames.SEQ_LENS not in batch:
        return batch.like(batch.mapped(pick))
    return batch.like(
        {name: map_nest(pick_sequences if counts_sequences(name) else pick, batch[name]) for name in batch}
    )


def regrouped(batch: SomeColumns, rows: Array, lengths: Array) -> SomeColumns:
    """These rows of sequences, copied, as new sequences of these lengths; zeros for rows below 0.

    The state before a sequence is that at the beginning of its first row's, or what the row before gave out, if the
    batch has that.
    """
    sequences = Sequences.of(batch)
    firsts = np.maximum(rows[np.cumsum(lengths) - lengths], 0)
    made = taken(batch, np.append(sequences.place_of_rows, -1)[rows], sequences.of_rows[firsts])
    inside = np.flatnonzero(firsts > sequences.starts[sequences.of_rows[firsts]])
    given_out = sequences.place_of_rows[firsts[inside] - 1]

    def after(leaf: Leaf, out: Leaf) -> Leaf:
        leaf[inside] = take(out, given_out)
        return leaf

    for name in filter(is_state_in, batch):
        if state_out_of(name) in batch:
            made[name] = map_nest(after, made[name], batch[state_out_of(name)])
    seq_lens = batch[ColumnNames.SEQ_LENS]
    is_tensor = isinstance(seq_lens, torch.Tensor)
    made[ColumnNames.SEQ_LENS] = torch.as_tensor(lengths).to(seq_lens) if is_tensor else lengths.astype(seq_lens.dtype)
    return made


def concat(batches: Iterable[Columns], kind: type[SomeColumns]) -> SomeColumns:
    """Batches as a new one; empty ones are passed over.

    Raises:
        ValueError: columns of different lengths, names, structures or shapes, or batches that differ in `zero_padded`,
            `time_major` or `max_seq_len`.
    """
    filled, made = [batch for batch in batches if batch.count], kind()
    if not filled:
        return made
    _check_alike(filled)
    first = filled[0]
    dict.update(made, {name: _joined(name, filled) for name in first})
    made.time_major, made.zero_padded = first.time_major, first.zero_padded
    made.max_seq_len = None if first.max_seq_len is None else max(batch.max_seq_len or 0 for batch in filled)
    known = [(batch.num_grad_updates, batch.count) for batch in filled if batch.num_grad_updates is not None]
    if known:
        made.num_grad_updates = sum(updates * rows for updates, rows in known) / sum(rows for _, rows in known)
    made.is_training = all(batch.is_training for batch in filled)
    if any(batch.own_env_steps is not None for batch in filled):
        made.own_env_steps = sum(batch.env_steps() for batch in filled)
    return made


def _check_alike(batches: Sequence[Columns]) -> None:
    first = batches[0]
    for batch in batches:
        if missing := first.keys() ^ batch.keys():
            raise ValueError(f"columns {sorted(missing)} are in some batches only; give them to all, or delete them")
        check_lengths(batch)
    traits: dict[str, set[Any]] = {
        "zero_padded": {batch.zero_padded for batch in batches},
        "time_major": {batch.time_major for batch in batches},
        "max_seq_len given": {batch.max_seq_len is not None for batch in batches},
        "max_seq_len": {batch.max_seq_len for batch in batches if first.zero_padded},
    }
    for trait, values in traits.items():
        if len(values) > 1:
            raise ValueError(f"batches differ in {trait}: {sorted(map(str, values))}; it must be the same in all")


def _joined(name: str, batches: list[Columns]) -> Any:
    axis = 1 if batches[0].time_major and not counts_sequences(name) else 0
    try:
        return map_together(partial(joined, axis=axis), [dict.__getitem__(batch, name) for batch in batches])
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"columns named {name!r} do not fit: {error}") from error
