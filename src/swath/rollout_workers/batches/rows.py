"""Rows of batches: what `seq_lens` says about them, some of them, and batches one behind another.

seq_lens 2 3 1     rows  a a b b b c            not padded: one sequence behind the other
                   rows  a a . b b b c . .      padded to 3: each takes as many places
none               rows  a b c d e f            each row is a sequence of its own
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Self, TypeAlias, TypeVar, overload

import numpy as np
import torch

from swath.options import count
from swath.rollout_workers.batches.columns import Columns
from swath.rollout_workers.batches.names import ColumnNames, counts_sequences, is_state_in, state_out_of
from swath.rollout_workers.nests import Array, Leaf, as_array, joined, leaves, map_nest, map_together, rows_of, take

# The builtin, which the method of that name hides.
Slice: TypeAlias = slice

_EPISODE_KEYS = (ColumnNames.EPS_ID, ColumnNames.DONES)


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


class Rows(Columns):
    """Columns that can be taken apart by rows."""

    def check_lengths(self) -> None:
        """Raise `ValueError`, with names and lengths, unless all columns with a leading dimension are equally long.

        With `seq_lens` that is the sum of its numbers, or the places of padded sequences; `state_in_…` then have one
        row per sequence.
        """
        has_sequences = ColumnNames.SEQ_LENS in self
        shapes = {column.shape[:1] if isinstance(column, np.ndarray) else None for column in self.values()}
        if len(shapes) == 1 and not shapes & {None, ()} and not has_sequences:
            return  # as in most batches
        sequences, found, rows = Sequences.of(self), [], None
        if has_sequences and not self.time_major:
            rows = int(sequences.bounds[-1])
        for name, column in self.items():
            for path, leaf in leaves(column, (name,)) if name != ColumnNames.SEQ_LENS else ():
                length, of_states = rows_of(leaf), has_sequences and is_state_in(name)
                if length is not None:
                    rows = length if rows is None and not of_states else rows
                    found.append((path, length, len(sequences) if of_states else rows))
        if any(length != wanted for _, length, wanted in found):
            named = ", ".join(f"{'/'.join(map(str, path))}: {length}" for path, length, _ in found)
            padded = f"{rows} rows, for {len(sequences)} sequences with padding"
            needed = padded if has_sequences else "one row per step"
            raise ValueError(f"columns of different lengths: {named}; every column needs {needed}")

    def sequences(self) -> Sequences:
        """The sequences, each row one where there are none.

        Raises:
            ValueError: columns of different lengths, or that cannot be taken apart by rows.
        """
        self._check_rows()
        return Sequences.of(self)

    @overload
    def __getitem__(self, name: Slice) -> Self: ...
    @overload
    def __getitem__(self, name: str) -> Any: ...
    def __getitem__(self, name: str | Slice) -> Any:
        if not isinstance(name, slice):
            return super().__getitem__(name)
        if name.step not in (None, 1):
            raise ValueError(
                f"step {name.step} of a slice of a batch must be 1; take every n-th row of the columns instead"
            )
        self._check_rows()
        start, stop, _ = name.indices(self.count)
        stop = max(start, stop)
        if ColumnNames.SEQ_LENS not in self:
            return self.like(self.mapped(partial(take, rows=slice(start, stop))))
        sequences = Sequences.of(self)
        first, last = sequences.before(start), sequences.before(stop)
        return taken(self, slice(*sequences.bounds[[first, last]]), slice(first, last))

    def columns(self, keys: Iterable[str]) -> list[Any]:
        """These columns."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict; `seq_lens` is 1 in each."""
        columns = self._row_by_row()
        for i in range(self.count):
            yield columns.mapped(partial(_row, i))

    def take(self, rows: Array) -> Self:
        """These rows, copied: sequences of one row each, where there are sequences.

        The state before a row is that at the beginning of its sequence, or what the row before gave out
        (`state_out_…`), if the batch has that.

        Args:
            rows: their numbers `[n]`.
        """
        self._check_rows()
        if ColumnNames.SEQ_LENS not in self:
            return taken(self, rows, rows)
        made = regrouped(self, rows, np.ones(len(rows), dtype=np.int64))
        made.zero_padded = False
        return made

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> Self:
        """Exactly the rows from `start` to `end`; a negative start asks for zeros in front.

        Args:
            start: the first row.
            end: the row behind the last.
            state_start: the first sequence that the rows are from, if the caller knows.
            state_end: the sequence behind the last.

        Raises:
            ValueError: the last two are not as it is, columns of different lengths, or padded sequences.
        """
        self._check_rows()
        front = max(-count("start", start, least=None), 0)
        begin = min(max(start, 0), self.count)
        stop = max(begin, min(count("end", end, least=0), self.count))
        rows: Any = np.concatenate([np.full(front, -1), np.arange(begin, stop)]) if front else slice(begin, stop)
        if ColumnNames.SEQ_LENS not in self:
            return taken(self, rows, rows)
        sequences = Sequences.of(self)
        if sequences.stride is not None:
            raise ValueError(
                "of padded sequences only whole ones can be taken; use batch[i:j], or slice before padding"
            )
        found, lengths = np.unique(sequences.of_rows[begin:stop], return_counts=True)
        if front:  # zeros in front belong to the first
            found, lengths = (found, lengths) if len(found) else (np.zeros(1, int), np.zeros(1, int))
            lengths[0] += front
        span = (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)
        if (state_start, state_end) not in ((None, None), span):
            given = (state_start, state_end)
            raise ValueError(f"rows {start} to {end} are from sequences {span[0]} to {span[1]}, not {given}")
        return regrouped(self, rows if front else np.arange(begin, stop), lengths)

    def timeslices(self, size: int | None = None, num_slices: int | None = None, k: int | None = None) -> list[Self]:
        """Parts of `size` (or `k`) rows, the last may be shorter; or `num_slices` parts, as equal as can be.

        With `seq_lens` cuts move down to where a sequence starts, and parts that get empty by that are left out.

        Raises:
            ValueError: not exactly one of the three, or one below 1.
        """
        given = [value for value in (size, num_slices, k) if value is not None]
        if len(given) != 1:
            raise ValueError(f"timeslices takes one of size={size}, num_slices={num_slices}, k={k}")
        if num_slices is None:
            bounds = [*range(0, self.count, count("size", given[0])), self.count]
        else:
            wanted = count("num_slices", num_slices)
            bounds = [0, *np.cumsum([(self.count + i) // wanted for i in range(wanted)]).tolist()]
        parts = [self[start:stop] for start, stop in pairwise(bounds)]
        return parts if ColumnNames.SEQ_LENS not in self else [part for part in parts if part.count]

    def split_by_episode(self, key: str | None = None) -> list[Self]:
        """One batch per run of equal `eps_id`, or where that is missing per done; `key` forces "eps_id" or "dones".

        Raises:
            KeyError: no such column.
            ValueError: another key, or an episode that ends in the middle of a padded sequence.
        """
        if key not in (None, *_EPISODE_KEYS):
            raise ValueError(f"split_by_episode(key={key!r}) splits by one of {_EPISODE_KEYS}")
        key = key or (ColumnNames.EPS_ID if ColumnNames.EPS_ID in self else ColumnNames.DONES)
        sequences = self.sequences()
        values = as_array(self[key])[sequences.place_of_rows]
        ends = values[1:] != values[:-1] if key == ColumnNames.EPS_ID else values[:-1]
        bounds = [0, *(np.flatnonzero(ends) + 1).tolist(), self.count] if self.count else []
        if sequences.stride is None:
            return [self.slice(start, stop) for start, stop in pairwise(bounds)]
        if not set(bounds) <= {*sequences.starts.tolist(), self.count}:
            raise ValueError("a padded sequence goes on over the end of an episode; split by episode before padding")
        return [self[start:stop] for start, stop in pairwise(bounds)]

    def concat(self, other: Rows) -> Self:
        """A new batch of both, as `concat_samples` makes it."""
        return concat([self, other], type(self))

    def shuffle(self, generator: np.random.Generator | None = None) -> Self:
        """Put the rows in random order, all columns and `infos` alike, in place; padded sequences stay together.

        Args:
            generator: what draws the order; by default NumPy's global state.

        Returns:
            This batch.

        Raises:
            ValueError: columns of different lengths, or sequences without padding.
        """
        sequences = self.sequences()
        if sequences.stride is None:
            raise ValueError("rows of sequences cannot be shuffled; after right_zero_pad() whole sequences can")
        draw: Any = np.random.permutation if generator is None else generator.permutation
        order = draw(len(sequences))
        places = (order[:, None] * sequences.stride + np.arange(sequences.stride)).reshape(-1)
        dict.update(self, taken(self, places, order))
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> Self:
        """Let each sequence take `max_seq_len` rows, zeros behind its end, in place; None among objects.

        Args:
            max_seq_len: at least the length of the longest.
            exclude_states: only True: `state_in_…` have one row per sequence.

        Returns:
            This batch.

        Raises:
            ValueError: no `seq_lens`, a longer sequence, columns of different lengths, or another padding already; or
                `exclude_states=False`.
        """
        if not exclude_states:
            raise ValueError("exclude_states=False is not served: states have one row per sequence; leave it out")
        stride = count("max_seq_len", max_seq_len)
        if ColumnNames.SEQ_LENS not in self:
            raise ValueError(f"right_zero_pad() needs 'seq_lens'; this batch has only {sorted(self)}")
        sequences = self.sequences()
        if sequences.stride not in (None, stride):
            raise ValueError(
                f"the sequences are padded to {sequences.stride} already; pad the batch they are from to {stride}"
            )
        longest = sequences.lengths.max(initial=0)
        if longest > stride:
            raise ValueError(f"max_seq_len={stride}, but there is a sequence of {longest} rows; use at least that")
        padded = Sequences(sequences.lengths, stride)
        rows = np.full(padded.bounds[-1], -1)
        rows[padded.place_of_rows] = sequences.place_of_rows
        dict.update(self, taken(self, rows, slice(None)))
        self.zero_padded, self.max_seq_len = True, stride
        return self

    def _row_by_row(self) -> Self:
        """The rows without padding, with lengths and states for every row instead of every sequence."""
        self.sequences()
        return self.take(np.arange(self.count)) if ColumnNames.SEQ_LENS in self else self

    def _check_rows(self) -> None:
        """Raise `ValueError` where `check_lengths` does, or if columns cannot be taken apart by rows."""
        self.check_lengths()
        if self.time_major and ColumnNames.SEQ_LENS in self:
            raise ValueError(
                "the columns of this batch are [T, B, …] (time_major); make them [B·T, …] to take rows of it"
            )


SomeRows = TypeVar("SomeRows", bound=Rows)


def _row(i: int, leaf: Leaf) -> Leaf:
    return leaf if rows_of(leaf) is None else leaf[i]


def taken(batch: SomeRows, rows: slice | Array, of_sequences: slice | Array) -> SomeRows:
    """These places of columns, and these of columns that have one row per sequence."""
    pick, pick_sequences = partial(take, rows=rows), partial(take, rows=of_sequences)
    if ColumnNames.SEQ_LENS not in batch:
        return batch.like(batch.mapped(pick))
    return batch.like(
        {name: map_nest(pick_sequences if counts_sequences(name) else pick, batch[name]) for name in batch}
    )


def regrouped(batch: SomeRows, rows: Array, lengths: Array) -> SomeRows:
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


def concat(batches: Iterable[Rows], kind: type[SomeRows]) -> SomeRows:
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


def _check_alike(batches: Sequence[Rows]) -> None:
    first = batches[0]
    for batch in batches:
        if missing := first.keys() ^ batch.keys():
            raise ValueError(f"columns {sorted(missing)} are in some batches only; give them to all, or delete them")
        batch.check_lengths()
    traits: dict[str, set[Any]] = {
        "zero_padded": {batch.zero_padded for batch in batches},
        "time_major": {batch.time_major for batch in batches},
        "max_seq_len given": {batch.max_seq_len is not None for batch in batches},
        "max_seq_len": {batch.max_seq_len for batch in batches if first.zero_padded},
    }
    for trait, values in traits.items():
        if len(values) > 1:
            raise ValueError(f"batches differ in {trait}: {sorted(map(str, values))}; it must be the same in all")


def _joined(name: str, batches: list[Rows]) -> Any:
    axis = 1 if batches[0].time_major and not counts_sequences(name) else 0
    try:
        return map_together(partial(joined, axis=axis), [dict.__getitem__(batch, name) for batch in batches])
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"columns named {name!r} do not fit: {error}") from error
