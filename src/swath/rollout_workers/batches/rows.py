"""Rows of batches: some of them, in sequences of other lengths, and those of one batch behind those of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from swath.rollout_workers.batches.columns import ColumnDict
from swath.rollout_workers.batches.names import (
    SHIFTED,
    ColumnNames,
    ViewRequirement,
    counts_sequences,
    is_state_in,
    require_own_step,
    state_out_of,
)
from swath.rollout_workers.nests import Array, Leaf, as_array, joined, map_nest, map_together, take

SomeColumns = TypeVar("SomeColumns", bound=ColumnDict)


def taken(batch: SomeColumns, rows: slice | Array, of_sequences: slice | Array = slice(None)) -> SomeColumns:
    """These places of columns, and these of columns that have one row per sequence, by default all."""
    pick, pick_sequences = partial(take, rows=rows), partial(take, rows=of_sequences)
    if ColumnNames.SEQ_LENS not in batch:
        return batch.like(batch.mapped(pick))
    return batch.like(
        {name: map_nest(pick_sequences if counts_sequences(name) else pick, batch[name]) for name in batch}
    )


def regrouped(batch: SomeColumns, rows: Array, lengths: Array) -> SomeColumns:
    """These rows of sequences without padding, copied, as sequences of other lengths; zeros for rows below 0.

    The state before a sequence is that at the beginning of its first row's, or what the row before gave out, if the
    batch has that.
    """
    seq_lens = batch[ColumnNames.SEQ_LENS]
    old = as_array(seq_lens).reshape(-1)
    starts, of_rows = np.cumsum(old) - old, np.repeat(np.arange(len(old)), old)
    firsts = np.maximum(rows[np.cumsum(lengths) - lengths], 0)
    made = taken(batch, rows, of_rows[firsts])
    inside = np.flatnonzero(firsts > starts[of_rows[firsts]])

    def after(leaf: Leaf, out: Leaf) -> Leaf:
        leaf[inside] = take(out, firsts[inside] - 1)
        return leaf

    for name in filter(is_state_in, batch):
        if state_out_of(name) in batch:
            made[name] = map_nest(after, made[name], batch[state_out_of(name)])
    is_tensor = isinstance(seq_lens, torch.Tensor)
    made[ColumnNames.SEQ_LENS] = torch.from_numpy(lengths).to(seq_lens) if is_tensor else lengths.astype(seq_lens.dtype)
    return made


def valid_places(lengths: Array, stride: int) -> Array:
    """Which places of sequences that are padded to `stride` hold rows."""
    return (np.arange(stride) < lengths[:, None]).ravel()


def concat(batches: Iterable[SomeColumns], kind: type[SomeColumns]) -> SomeColumns:
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


def _check_alike(batches: Sequence[ColumnDict]) -> None:
    first = batches[0]
    for batch in batches:
        if missing := first.keys() ^ batch.keys():
            raise ValueError(f"columns {sorted(missing)} are in some batches only; give them to all, or delete them")
        batch.check_lengths()
    for trait in ("zero_padded", "time_major", "max_seq_len"):
        values = {getattr(batch, trait) for batch in batches}
        may_differ = trait == "max_seq_len" and not first.zero_padded and None not in values
        if len(values) > 1 and not may_differ:
            raise ValueError(f"batches differ in {trait}: {sorted(map(str, values))}; it must be the same in all")


def _joined(name: str, batches: list[Any]) -> Any:
    axis = 1 if batches[0].time_major and not counts_sequences(name) else 0
    try:
        return map_together(partial(joined, axis=axis), [dict.__getitem__(batch, name) for batch in batches])
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"columns named {name!r} do not fit: {error}") from error


# Where the last row holds what these columns hold in the step behind it.
_BEHIND = {ColumnNames.OBS: ColumnNames.NEXT_OBS, **SHIFTED}


def input_at(columns: ColumnDict, row: int, views: Mapping[str, ViewRequirement] | None) -> dict[str, Any]:
    """What the columns that a policy reads hold in a row, or in the step behind the last.

    Args:
        columns: without sequences, or each row one.
        row: its number; for the step behind the last the number of rows.
        views: which columns; None: the observation, states, and the action and the reward before, where they are known.

    Raises:
        IndexError: there are no rows.
        KeyError: a column that the batch cannot give.
        ValueError: a view of another step.
    """
    if views is None:
        before = (name for name, source in SHIFTED.items() if source in columns)
        views = dict.fromkeys((ColumnNames.OBS, *before, *filter(is_state_in, columns)), ViewRequirement())
    found = {}
    for name, view in views.items():
        require_own_step(name, view)
        if not view.used_for_compute_actions:
            continue
        source, at = name, row
        if row == columns.count:
            source, at = state_out_of(name) if is_state_in(name) else _BEHIND.get(name, name), row - 1
        elif name not in columns and name in SHIFTED:
            source, at = SHIFTED[name], row - 1
        if source not in columns:
            raise KeyError(f"the input needs column {source!r}; the batch has {sorted(columns)}")
        found[name] = map_nest(partial(take, rows=np.array([at])), columns[source])
    return found


_SORTED_BY = (ColumnNames.EPS_ID, ColumnNames.T, ColumnNames.AGENT_INDEX)


def by_step(batches: Sequence[ColumnDict]) -> tuple[Array, Array, Array]:
    """All rows in the order of episode, time and agent: at which env step each is, in which batch, and which row there.

    Raises:
        KeyError: a batch lacks a column that says this.
    """
    episodes, times, agents = (np.concatenate([as_array(batch[name]) for batch in batches]) for name in _SORTED_BY)
    order = np.lexsort((agents, times, episodes))
    is_new = (np.diff(episodes[order]) != 0) | (np.diff(times[order]) != 0)
    counts = [batch.count for batch in batches]
    whose, rows = np.repeat(np.arange(len(batches)), counts), np.concatenate([np.arange(n) for n in counts])
    return np.append(0, np.cumsum(is_new)), whose[order], rows[order]
