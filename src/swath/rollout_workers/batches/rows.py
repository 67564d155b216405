"""Columns of transitions: their rows are counted, selected, shuffled and padded.

seq_lens 2 3 1     rows  a a b b b c            not padded: consecutive sequences
                   rows  a a . b b b c . .      padded to 3: each takes as many places
none               rows  a b c d e f            no sequences
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

import numpy as np
import torch

from swath.options import count
from swath.rollout.spaces import Array
from swath.rollout_workers.batches import names
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames
from swath.rollout_workers.nests import Leaf, as_array, leaves, map_nest, rows_of, take

# The builtin, which a method of batches hides.
Slice: TypeAlias = slice
_ALL = slice(None)

# Attributes that RLlib's batches have and these lack.
_MISSING = "compress decompress_if_needed pack_if_needed set_get_interceptor accessed_keys added_keys deleted_keys"
_REPLACEMENT = ": columns are plain arrays; keep them with numpy.savez_compressed, make them tensors with to_device()"


class ExplainsMissing:
    """Explains how to replace attributes that only RLlib's batches have."""

    if not TYPE_CHECKING:  # a type checker must see which attributes are missing

        def __getattr__(self, name: str) -> Any:
            replacement = _REPLACEMENT if name in _MISSING.split() else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{replacement}", name=name, obj=self)


def attempt_count_timesteps(tensor_dict: dict[str, Any]) -> int:
    """Return the sum of `seq_lens`, else the rows of the first column that can be counted, else 0.

    Columns named `infos`, `state_in_…` and `state_out_…` are not counted. Of a nested column the first leaf is.
    """
    seq_lens = dict.get(tensor_dict, ColumnNames.SEQ_LENS)
    if seq_lens is not None and len(seq_lens):
        return int(as_array(seq_lens).sum())
    for name, column in tensor_dict.items():
        if not name.startswith((ColumnNames.INFOS, ColumnNames.SEQ_LENS, STATE_IN, STATE_OUT)):
            _, leaf = next(leaves(column), ((), None))
            if rows := rows_of(leaf):
                return rows
    return 0


class ColumnDict(ExplainsMissing, ColumnNames, dict[str, Any]):
    """Columns by name, with operations on their rows; `SampleBatch` says more.

    Attributes:
        time_major: columns are `[T, B, …]`.
        max_seq_len: no sequence is longer.
        zero_padded: each sequence takes `max_seq_len` rows, with zeros after its end.
        shared_env_steps: env steps of the rows, if several agents shared an env; else None. Copies keep the number,
            `concat` adds it up, parts of the batch do not have it.
    """

    time_major: bool | None
    max_seq_len: int | None
    zero_padded: bool
    shared_env_steps: int | None = None

    @property
    def count(self) -> int:
        """Return the number of rows, by `attempt_count_timesteps`."""
        return attempt_count_timesteps(self)

    def __len__(self) -> int:
        return self.count

    @overload
    def __getitem__(self, name: Slice) -> Self: ...
    @overload
    def __getitem__(self, name: str) -> Any: ...
    def __getitem__(self, name: str | Slice) -> Any:
        if not isinstance(name, slice):
            return self._dones() if name == self.DONES else super().__getitem__(name)
        if name.step not in (None, 1):
            raise ValueError(f"step {name.step} of a slice of a batch must be 1; take every n-th row of the columns")
        lengths = self.sequences()
        start, stop, _ = name.indices(self.count)
        if lengths is None:
            return self._select(slice(start, max(start, stop)))
        first, last = np.searchsorted(np.cumsum(lengths), (start, max(start, stop)), side="right")
        places = np.append(0, np.cumsum(self.places(lengths)))
        return self._select(slice(places[first], places[last]), slice(first, last))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict; `seq_lens` is 1 in each."""
        columns = self.row_by_row()
        for i in range(self.count):
            yield columns.map_leaves(partial(_row, i))

    def take(self, rows: Array) -> Self:
        """Copy the rows with the numbers `[n]`, or where a mask `[count]` is true; sequences then have one row each.

        Negative numbers count from the end.

        Raises:
            IndexError: there is no row of this number.
        """
        if (unpadded := self.unpadded()) is not self:
            return unpadded.take(rows)
        rows = np.arange(self.count)[rows]
        return self._select(rows) if self.SEQ_LENS not in self else self._select_sequences(rows, np.ones_like(rows))

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> Self:  # noqa: ARG002
        """Return exactly the rows from `start` to before `end`; a negative start adds zeros in front.

        Which states go with them follows from the rows: `state_start` and `state_end` need not be given.

        Raises:
            ValueError: columns of different lengths, or padded sequences.
        """
        lengths, n_rows = self.sequences(), self.count
        begin = min(max(start, 0), n_rows)
        stop = max(begin, min(end, n_rows))
        if lengths is None and start >= 0:
            return self._select(slice(begin, stop))
        rows = np.append(np.full(max(-start, 0), -1), np.arange(begin, stop))
        if lengths is None:
            return self._select(rows)
        if self.zero_padded:
            raise ValueError("of padded sequences only whole ones can be taken; use batch[i:j], or cut before padding")
        # zeros in front belong to the first sequence
        sequence = np.repeat(np.arange(len(lengths)), lengths)[np.maximum(rows, 0)]
        return self._select_sequences(rows, np.unique(sequence, return_counts=True)[1])

    def timeslices(self, size: int | None = None, num_slices: int | None = None, k: int | None = None) -> list[Self]:
        """Split into parts of `size` (or `k`) rows, the last may be shorter; or into `num_slices` equal parts.

        With `seq_lens` cuts move down to the start of a sequence, and parts that become empty are left out.

        Raises:
            ValueError: not exactly one of the three, or one below 1.
        """
        arguments = [value for value in (size, num_slices, k) if value is not None]
        if len(arguments) != 1:
            raise ValueError(f"timeslices takes one of size={size}, num_slices={num_slices}, k={k}")
        number = count("num_slices" if num_slices is not None else "size", arguments[0])
        bounds = [*range(0, self.count, number), self.count]
        if num_slices is not None:
            bounds = [self.count * i // number for i in range(number + 1)]
        parts = [self[start:stop] for start, stop in pairwise(bounds)]
        return parts if self.SEQ_LENS not in self else [part for part in parts if part.count]

    def split_by_episode(self, key: str | None = None) -> list[Self]:
        """Split by runs of equal `eps_id`, or where that is missing by dones; `key` forces "eps_id" or "dones".

        Raises:
            KeyError: the column is missing.
            ValueError: another key, or padded sequences.
        """
        if key not in (None, self.EPS_ID, self.DONES):
            raise ValueError(f"split_by_episode(key={key!r}) splits by one of 'eps_id' and 'dones'")
        key = key or (self.EPS_ID if self.EPS_ID in self else self.DONES)
        values = as_array(self[key])
        ends = values[1:] != values[:-1] if key == self.EPS_ID else values[:-1]
        bounds = [0, *(np.flatnonzero(ends) + 1).tolist(), self.count] if self.count else []
        return [self.slice(start, stop) for start, stop in pairwise(bounds)]

    def shuffle(self) -> Self:
        """Shuffle the rows in place, all columns and `infos` alike; padded sequences stay together.

        Returns this batch; the order is drawn by NumPy's global state.

        Raises:
            ValueError: columns of different lengths, or sequences without padding.
        """
        lengths = self.sequences()
        if lengths is not None and not self.zero_padded:
            raise ValueError("rows of sequences cannot be shuffled; after right_zero_pad() whole sequences can")
        order = np.random.permutation(self.count if lengths is None else len(lengths))  # noqa: NPY002  workers seed it
        stride = 1 if lengths is None else self.max_seq_len or 0
        dict.update(self, self._select((order[:, None] * stride + np.arange(stride)).ravel(), order))
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> Self:
        """Pad each sequence in place to `max_seq_len` rows, with zeros at its end; None among objects.

        Returns this batch. `exclude_states` is always True: `state_in_…` have one row per sequence.

        Raises:
            ValueError: no `seq_lens`, a longer sequence, columns of different lengths, or another padding already; or
                `exclude_states=False`.
        """
        stride, lengths = count("max_seq_len", max_seq_len), self.sequences()
        if lengths is None or not exclude_states:
            raise ValueError("right_zero_pad() needs 'seq_lens', and exclude_states=True: states are of sequences")
        if self.zero_padded and stride != self.max_seq_len:
            raise ValueError(f"padded to {self.max_seq_len} already; pad the batch they are from to {stride}")
        if (longest := lengths.max(initial=0)) > stride:
            raise ValueError(f"max_seq_len={stride}, but there is a sequence of {longest} rows; use at least that")
        if not self.zero_padded:
            rows = np.full(len(lengths) * stride, -1)
            rows[_valid_places(lengths, stride)] = np.arange(self.count)
            dict.update(self, self._select(rows))
            self.zero_padded, self.max_seq_len = True, stride
        return self

    def unpadded(self) -> Self:
        """Return the rows without padding: this batch, if there is none."""
        lengths = self.sequences()
        if lengths is None or not self.zero_padded:
            return self
        unpadded = self._select(np.flatnonzero(_valid_places(lengths, self.max_seq_len or 0)))
        unpadded.zero_padded = False
        return unpadded

    def row_by_row(self) -> Self:
        """Return the rows without padding, with lengths and states for every row instead of every sequence."""
        return self if self.sequences() is None else self.take(np.arange(self.count))

    def check_lengths(self) -> None:
        """Raise `ValueError`, with names and lengths, unless all columns with a leading dimension are equally long.

        With `seq_lens` that is the sum of its numbers, or the places of padded sequences; `state_in_…` then have one
        row per sequence.
        """
        lengths = self.lengths()
        if lengths is None:
            shapes = {column.shape[:1] if isinstance(column, np.ndarray) else None for column in self.values()}
            if len(shapes) == 1 and not shapes & {None, ()}:
                return  # the usual case
        columns = {name: column for name, column in self.items() if name != self.SEQ_LENS}
        row_counts = [(path, n_rows) for path, leaf in leaves(columns) if (n_rows := rows_of(leaf)) is not None]
        expected, state_lengths = "one row per step", set[int]()
        row_lengths = {n_rows for path, n_rows in row_counts if lengths is None or not names.is_state_in(path[0])}
        if lengths is not None:
            expected = f"as many rows as its {len(lengths)} sequences have"
            state_lengths = {len(lengths), *(n_rows for path, n_rows in row_counts if names.is_state_in(path[0]))}
            row_lengths |= set() if self.time_major else {int(self.places(lengths).sum())}
        if max(len(row_lengths), len(state_lengths)) > 1:
            by_column = ", ".join(f"{'/'.join(map(str, path))}: {n_rows}" for path, n_rows in row_counts)
            raise ValueError(f"columns of different lengths: {by_column}; every column needs {expected}")

    def lengths(self) -> Array | None:
        """Return the rows of each sequence, None where there are none."""
        seq_lens = dict.get(self, self.SEQ_LENS)
        return None if seq_lens is None else as_array(seq_lens).astype(np.int64).reshape(-1)

    def sequences(self) -> Array | None:
        """Return the rows of each sequence, or None; raise `ValueError` if the batch has no plain rows."""
        self.check_lengths()
        if self.time_major and self.SEQ_LENS in self:
            raise ValueError("columns of this batch are [T, B, …] (time_major); make them [B·T, …] to take rows of it")
        return self.lengths()

    def places(self, lengths: Array) -> Array:
        """Return how many places in a column each sequence takes, with padding."""
        return np.full_like(lengths, self.max_seq_len) if self.zero_padded else lengths

    def with_columns(self, columns: dict[str, Any]) -> Self:
        """Return a batch of other columns with the same attributes, but for `shared_env_steps`."""
        batch = type(self)()
        dict.update(batch, columns)
        vars(batch).update(vars(self), shared_env_steps=None)
        return batch

    def map_leaves(self, function: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the columns with `function(leaf)` in place of each leaf."""
        return {name: map_nest(function, column) for name, column in self.items()}

    def _select(self, rows: Slice | Array, sequences: Slice | Array = _ALL) -> Self:
        """Return these places of columns, and these of columns that have one row per sequence, by default all."""
        pick, pick_sequences = partial(take, rows=rows), partial(take, rows=sequences)
        if self.SEQ_LENS not in self:
            return self.with_columns(self.map_leaves(pick))
        return self.with_columns(
            {name: map_nest(pick_sequences if names.counts_sequences(name) else pick, self[name]) for name in self}
        )

    def _select_sequences(self, rows: Array, lengths: Array) -> Self:
        """Copy rows of sequences without padding as sequences of other lengths; zeros for rows below 0.

        A new sequence starts with the state at the start of its old one, or, if it starts later and the batch has
        `state_out_…`, with the state after the row before.
        """
        seq_lens = self[self.SEQ_LENS]
        old_lengths = as_array(seq_lens).reshape(-1)
        starts = np.cumsum(old_lengths) - old_lengths
        sequences = np.repeat(np.arange(len(old_lengths)), old_lengths)  # the sequence of each row
        firsts = np.maximum(rows[np.cumsum(lengths) - lengths], 0)
        batch = self._select(rows, sequences[firsts])
        inside = np.flatnonzero(firsts > starts[sequences[firsts]])

        def replace_states(leaf: Leaf, out: Leaf) -> Leaf:
            leaf[inside] = take(out, firsts[inside] - 1)
            return leaf

        for name in filter(names.is_state_in, self):
            if names.state_out_of(name) in self:
                batch[name] = map_nest(replace_states, batch[name], self[names.state_out_of(name)])
        is_tensor = isinstance(seq_lens, torch.Tensor)
        batch[self.SEQ_LENS] = torch.from_numpy(lengths).to(seq_lens) if is_tensor else lengths.astype(seq_lens.dtype)
        return batch

    def _dones(self) -> Any:
        """Return `terminateds | truncateds`, as they are stored; a new array that cannot be written."""
        flags = [self[name] for name in (self.TERMINATEDS, self.TRUNCATEDS) if name in self]
        if not flags:
            raise KeyError(f"'dones': the batch has neither 'terminateds' nor 'truncateds', but {sorted(self)}")
        if all(isinstance(flag, torch.Tensor) for flag in flags):
            return torch.logical_or(flags[0], flags[-1])
        dones = np.asarray(np.logical_or(as_array(flags[0]), as_array(flags[-1])))
        dones.flags.writeable = False
        return dones


def _row(i: int, leaf: Leaf) -> Leaf:
    return leaf if rows_of(leaf) is None else leaf[i]


def _valid_places(lengths: Array, stride: int) -> Array:
    """Return which places of sequences that are padded to `stride` hold rows."""
    return (np.arange(stride) < lengths[:, None]).ravel()
