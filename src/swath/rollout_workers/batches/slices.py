"""Stretches of a batch, and a batch cut into parts: views of its columns.

b[1:4]          whole sequences: bounds snap down to where one starts
slice(1, 4)     exactly these rows: the sequences at both ends are cut
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from swath.options import count
from swath.rollout_workers.batches.columns import Columns, SomeColumns, dones_of, like
from swath.rollout_workers.batches.leaves import Array, Leaf, as_array, blank, joined, map_together, rows_of
from swath.rollout_workers.batches.names import ColumnNames, counts_sequences, is_state_in, state_out_of
from swath.rollout_workers.batches.sequences import Sequences, check_rows, place_of_rows
from swath.rollout_workers.nests import map_nest


def _cut(batch: SomeColumns, places: slice, sequences: slice | None = None) -> SomeColumns:
    """Views of these rows, and of these rows of columns that have one per sequence."""

    def rows(name: str, leaf: Leaf) -> Leaf:
        if rows_of(leaf) is None:
            return leaf
        return leaf[places if sequences is None or not counts_sequences(name) else sequences]

    return like(batch, {name: map_nest(partial(rows, name), column) for name, column in batch.items()})


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
        return _cut(batch, slice(start, max(start, stop)))
    first, last = sequences.before(start), sequences.before(max(start, stop))
    return _cut(batch, slice(sequences.place(first), sequences.place(last)), slice(first, last))


def exact(batch: SomeColumns, start: int, end: int, states: tuple[int, int] | None = None) -> SomeColumns:
    """Exactly these rows, behind rows of zeros where the start is negative.

    Args:
        batch: whose rows.
        start: the first.
        end: behind the last.
        states: the sequences that they are said to be from, first and behind last; found out if None.

    Raises:
        ValueError: bounds that are none, columns of different lengths, padded sequences, or other `states` than found.
    """
    check_rows(batch)
    front = max(-count("start", start, least=None), 0)
    first_row = min(max(start, 0), batch.count)
    rows = slice(first_row, max(first_row, min(count("end", end, least=0), batch.count)))
    sequences = Sequences.of(batch)
    if sequences is None:
        return _behind_zeros(_cut(batch, rows), front)
    if sequences.stride is not None:
        raise ValueError("of padded sequences only whole ones can be taken; use batch[i:j], or slice before padding")
    first, last = _sequences_in(sequences, rows, front)
    if states not in (None, (first, last)):
        raise ValueError(f"rows {start} to {end} are from sequences {first} to {last}, not {states}")
    made = _behind_zeros(_cut(batch, rows, slice(first, last)), front)
    if first < last and sequences.starts[first] < rows.start:
        dict.update(made, _states_at(rows.start, batch, made))
    lengths = np.minimum(sequences.ends[first:last], rows.stop) - np.maximum(sequences.starts[first:last], rows.start)
    lengths[:1] += front  # zeros in front belong to the first
    dict.__setitem__(made, ColumnNames.SEQ_LENS, seq_lens_like(batch, lengths))
    return made


def seq_lens_like(batch: Columns, lengths: Array) -> Leaf:
    """New `seq_lens`, of the kind and dtype that the batch has."""
    given = dict.__getitem__(batch, ColumnNames.SEQ_LENS)
    if isinstance(given, torch.Tensor):
        return torch.as_tensor(lengths, dtype=given.dtype, device=given.device)
    return lengths.astype(given.dtype)


def _sequences_in(sequences: Sequences, rows: slice, front: int) -> tuple[int, int]:
    first = sequences.before(rows.start)
    if not front and rows.start == rows.stop:
        return first, first
    last = int(np.searchsorted(sequences.starts, rows.stop, side="left"))
    return first, max(last, min(first + 1, len(sequences)))


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


_EPISODE_KEYS = (ColumnNames.EPS_ID, ColumnNames.DONES)


def by_size(batch: SomeColumns, size: int) -> list[SomeColumns]:
    """Parts of this many rows, the last may be shorter."""
    return _parts(batch, [*range(0, batch.count, count("size", size)), batch.count])


def by_number(batch: SomeColumns, num_slices: int) -> list[SomeColumns]:
    """This many parts, as equal as can be, the shorter ones first."""
    wanted, n_rows = count("num_slices", num_slices), batch.count
    sizes = np.full(wanted, n_rows // wanted)
    sizes[wanted - n_rows % wanted :] += 1
    return _parts(batch, [0, *np.cumsum(sizes).tolist()])


def by_episode(batch: SomeColumns, key: str | None) -> list[SomeColumns]:
    """One part per run of one `eps_id`, or up to each done.

    Raises:
        KeyError: neither column is there, or not the one that `key` names.
        ValueError: another key, or columns of different lengths.
    """
    check_rows(batch)
    bounds = _episode_bounds(batch, _episode_key(batch, key))
    sequences = Sequences.of(batch)
    if sequences is None or sequences.stride is not None:
        if sequences is not None and not set(bounds) <= {*sequences.starts.tolist(), batch.count}:
            raise ValueError("a padded sequence goes on over the end of an episode; split by episode before padding")
        return [part(batch, slice(start, stop)) for start, stop in pairwise(bounds)]
    return [exact(batch, start, stop) for start, stop in pairwise(bounds)]


def valid_dones(batch: SomeColumns) -> Array:
    """The `dones` of the rows, without padding."""
    flags: Array = as_array(dones_of(batch))[place_of_rows(batch)]
    return flags


def _parts(batch: SomeColumns, bounds: Sequence[int]) -> list[SomeColumns]:
    parts = [part(batch, slice(start, stop)) for start, stop in pairwise(bounds)]
    return parts if ColumnNames.SEQ_LENS not in batch else [one for one in parts if one.count]


def _episode_key(batch: SomeColumns, key: str | None) -> str:
    if key not in (None, *_EPISODE_KEYS):
        raise ValueError(f"split_by_episode(key={key!r}) splits by one of {_EPISODE_KEYS}")
    if key is None:
        return ColumnNames.EPS_ID if ColumnNames.EPS_ID in batch else ColumnNames.DONES
    return key


def _episode_bounds(batch: SomeColumns, key: str) -> list[int]:
    """Where episodes begin, and the end of the last."""
    if key == ColumnNames.EPS_ID:
        ids = as_array(dict.__getitem__(batch, key))[place_of_rows(batch)]
        changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    else:
        changes = np.flatnonzero(valid_dones(batch)[:-1]) + 1
    return [0, *changes.tolist(), batch.count] if batch.count else []
