"""A batch cut into parts, each row in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from swath.options import count
from swath.rollout_workers.batches.columns import SomeColumns, dones_of
from swath.rollout_workers.batches.leaves import Array, as_array
from swath.rollout_workers.batches.lengths import check_rows
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sequences import Sequences, place_of_rows
from swath.rollout_workers.batches.slices import Span, exact, part

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
    return [exact(batch, Span(start, stop)) for start, stop in pairwise(bounds)]


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
