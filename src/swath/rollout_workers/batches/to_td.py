"""Columns as a TensorDict, in the same memory.

obs                        ──▶  observation
rewards [n]                ──▶  ("next", "reward") [n, 1]
actions {"a": …}, (…, …)   ──▶  ("action", "a"), ("action", "0"), …
infos, agent_id            ──▶  non-tensor entries, one per row
seq_lens, state_in_0       ──▶  non-tensor entries, whole: they have no row per transition
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from tensordict import NonTensorData, NonTensorStack, TensorDict

from swath.keys import as_tuple, nested
from swath.rollout_workers.batches.columns import Columns, dones_of
from swath.rollout_workers.batches.leaves import Leaf, as_tensor, holds_objects, leaves, rows_of
from swath.rollout_workers.batches.lengths import check_rows
from swath.rollout_workers.batches.names import ColumnNames, counts_sequences
from swath.rollout_workers.batches.sequences import Sequences
from swath.rollout_workers.batches.td_names import KEYS, LONE_NUMBERS


def to_tensordict(batch: Columns, names: Iterable[str] | None) -> TensorDict:
    """These columns, by default all, as a TensorDict `[n]`; padding counts as rows.

    Numbers stay where they are, except in arrays that are read-only.

    Raises:
        KeyError: a column that is not there.
        ValueError: columns of different lengths.
    """
    check_rows(batch)
    sequences = Sequences.of(batch)
    n_rows = batch.count if sequences is None else sequences.places
    entries = (
        (
            (*as_tuple(KEYS.get(name, name)), *map(str, path)),
            _entry(name, leaf, n_rows, whole=_is_whole(name, sequences)),
        )
        for name, column in _columns(batch, names)
        for path, leaf in leaves(column)
    )
    return TensorDict(nested(entries), batch_size=[n_rows])


def _columns(batch: Columns, names: Iterable[str] | None) -> Iterator[tuple[str, Any]]:
    if names is None:
        yield from batch.items()
        if ColumnNames.TERMINATEDS in batch or ColumnNames.TRUNCATEDS in batch:
            yield ColumnNames.DONES, dones_of(batch)
        return
    for name in names:
        if name == ColumnNames.DONES:
            yield name, dones_of(batch)
        elif name in batch:
            yield name, dict.__getitem__(batch, name)
        else:
            raise KeyError(f"to_tensordict: the batch has no column {name!r}, but {sorted(batch)}")


def _is_whole(name: str, sequences: Sequences | None) -> bool:
    return sequences is not None and counts_sequences(name)


def _entry(name: str, leaf: Leaf, n_rows: int, *, whole: bool) -> Any:
    if whole or rows_of(leaf) is None:
        return NonTensorData(leaf, batch_size=[n_rows])
    if holds_objects(leaf):
        return _objects(leaf, n_rows)
    tensor = as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
    return tensor.unsqueeze(-1) if name in LONE_NUMBERS and tensor.ndim == 1 else tensor


def _objects(rows: Any, n_rows: int) -> Any:
    if not n_rows:
        return NonTensorData(None, batch_size=[0])
    return NonTensorStack(*(NonTensorData(row) for row in rows))
