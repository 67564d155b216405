"""Batches one behind another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from swath.rollout_workers.batches.columns import Columns, SomeColumns
from swath.rollout_workers.batches.leaves import joined, map_together
from swath.rollout_workers.batches.names import counts_sequences
from swath.rollout_workers.batches.sequences import check_lengths


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
