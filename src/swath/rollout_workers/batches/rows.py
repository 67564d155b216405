"""Rows of batches: what `seq_lens` says about them, some of them, and batches one behind another.

seq_lens 2 3 1     rows  a a b b b c            not padded: one sequence behind the other
                   rows  a a . b b b c . .      padded to 3: each takes as many places
none               rows  a b c d e f            each row is a sequence of its own
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from swath.rollout_workers.batches.columns import Columns, SomeColumns
from swath.rollout_workers.batches.leaves import Array, Leaf, as_array, joined, leaves, map_together, rows_of, take
from swath.rollout_workers.batches.names import ColumnNames, counts_sequences, is_state_in, state_out_of
from swath.rollout_workers.nests import map_nest


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
    def of(cls, batch: Columns) -> Sequences:
        """The sequences of a batch."""
        seq_lens = dict.get(batch, ColumnNames.SEQ_LENS)
        if seq_lens is None:
            return cls(np.ones(batch.count, dtype=np.int64), 1)
        lengths = as_array(seq_lens).astype(np.int64).reshape(-1)
        return cls(lengths, batch.max_seq_len if batch.zero_padded else None)

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def ends(self) -> Array:
        """Behind which row each sequence ends, `[n]`."""
        return np.cumsum(self.lengths)

    @cached_property
    def starts(self) -> Array:
        """At which row each sequence begins, `[n]`."""
        return self.ends - self.lengths

    @property
    def of_rows(self) -> Array:
        """Which sequence each row is of, `[rows]`."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def places(self) -> int:
        """Rows that a column has: as many as there are, or with those behind the ends."""
        return self.place(len(self))

    @property
    def place_of_rows(self) -> Array:
        """Where in a column each row is, `[rows]`."""
        begins = self.starts if self.stride is None else np.arange(len(self)) * self.stride
        places: Array = np.arange(self.lengths.sum()) + np.repeat(begins - self.starts, self.lengths)
        return places

    def before(self, row: int) -> int:
        """How many sequences lie wholly before a row."""
        return int(np.searchsorted(self.ends, row, side="right")) if row > 0 else 0

    def place(self, sequence: int) -> int:
        """Where in a column a sequence begins, or would begin behind the last one."""
        return int(self.lengths[:sequence].sum()) if self.stride is None else sequence * self.stride


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
        rows = sequences.places
    for name, column in batch.items():
        for path, leaf in leaves(column, (name,)) if name != ColumnNames.SEQ_LENS else ():
            length, of_states = rows_of(leaf), has_sequences and is_state_in(name)
            if length is not None:
                rows = length if rows is None and not of_states else rows
                found.append((path, length, len(sequences) if of_states else rows))
    if any(length != wanted for _, length, wanted in found):
        named = ", ".join(f"{'/'.join(map(str, path))}: {length}" for path, length, _ in found)
        needed = (
            f"{rows} rows, for {len(sequences)} sequences with padding" if has_sequences else "one row per transition"
        )
        raise ValueError(f"columns of different lengths: {named}; every column needs {needed}")


def sequences_of(batch: Columns) -> Sequences:
    """The sequences of a batch, each row one where there are none.

    Raises:
        ValueError: columns of different lengths, or that cannot be taken apart by rows.
    """
    check_lengths(batch)
    if batch.time_major and ColumnNames.SEQ_LENS in batch:
        raise ValueError("the columns of this batch are [T, B, …] (time_major); make them [B·T, …] to take rows of it")
    return Sequences.of(batch)


def taken(batch: SomeColumns, rows: slice | Array, of_sequences: slice | Array) -> SomeColumns:
    """These rows of columns, and these of columns that have one row per sequence."""
    has_sequences = ColumnNames.SEQ_LENS in batch
    pick = {True: partial(take, rows=of_sequences), False: partial(take, rows=rows)}
    return batch.like(
        {name: map_nest(pick[has_sequences and counts_sequences(name)], column) for name, column in batch.items()}
    )


def states_before(batch: Columns, rows: Array) -> dict[str, Any]:
    """The states before these rows, by column.

    That is the one at the beginning of the row's sequence, or what the row before gave out, if the batch has that.
    """
    sequences = Sequences.of(batch)
    of_rows = sequences.of_rows[rows]
    inside = np.flatnonzero(rows > sequences.starts[of_rows])
    given_out = sequences.place_of_rows[rows[inside] - 1]

    def states(pair: list[Leaf]) -> Leaf:
        made = take(pair[0], of_rows)
        if len(pair) > 1:
            made[inside] = take(pair[1], given_out)
        return made

    found = {}
    for name in filter(is_state_in, batch):
        known = [dict.get(batch, column) for column in (name, state_out_of(name))]
        found[name] = map_together(states, [column for column in known if column is not None])
    return found


def lengths_like(batch: Columns, lengths: Array) -> Leaf:
    """New `seq_lens`, of the kind and dtype that the batch has."""
    given = dict.__getitem__(batch, ColumnNames.SEQ_LENS)
    if isinstance(given, torch.Tensor):
        return torch.as_tensor(lengths, dtype=given.dtype, device=given.device)
    return lengths.astype(given.dtype)


def concat(batches: Iterable[Columns], kind: type[SomeColumns]) -> SomeColumns:
    """Batches as a new one; empty ones are passed over.

    Raises:
        ValueError: columns of different lengths, names, structures or shapes, or batches that differ in `zero_padded`,
            `time_major` or `max_seq_len`.
    """
    filled = [batch for batch in batches if batch.count]
    if not filled:
        return kind()
    _check_alike(filled)
    first = filled[0]
    made = kind()
    dict.update(made, {name: _joined(name, filled) for name in first})
    made.time_major, made.zero_padded = first.time_major, first.zero_padded
    made.max_seq_len = None if first.max_seq_len is None else max(batch.max_seq_len or 0 for batch in filled)
    known = [(batch.count, batch.num_grad_updates) for batch in filled if batch.num_grad_updates is not None]
    if known:
        made.num_grad_updates = sum(rows * updates for rows, updates in known) / sum(rows for rows, _ in known)
    made.is_training = all(batch.is_training for batch in filled)
    if any(batch.own_env_steps is not None for batch in filled):
        made.own_env_steps = sum(batch.env_steps() for batch in filled)
    return made


def _check_alike(batches: Sequence[Columns]) -> None:
    first = batches[0]
    for batch in batches:
        if missing := set(first) ^ set(batch):
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
