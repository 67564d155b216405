"""Several passes over a batch, in shuffled minibatches: what `sample_and_learn` does with each policy's rows.

```
batch ──copy, standardise, pad──▶ ┌ shuffle ──cut──▶ learn_on_batch × n ┐ ──last epoch──▶ mean of the infos
                                  └──────────────── × epochs ───────────┘
```
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.rows import concat
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.policies.ranks import gathered
from swath.rollout_workers.policy import Policy

_SMALLEST_STD = 1e-4


def learn_in_passes(
    policy: Policy,
    batch: SampleBatch,
    epochs: int,
    size: int | None = None,
    fields: Sequence[str] = (),
    generator: np.random.Generator | None = None,
) -> dict[str, Any]:
    """Let a policy learn from minibatches of a batch, which is left as it is.

    Args:
        policy: learns.
        batch: of this policy.
        epochs: how often each row is used.
        size: rows of a minibatch, the last may be shorter; None: all rows at once.
        fields: columns that are brought to mean 0 and std 1 first.
        generator: draws the order of the rows; by default NumPy's global state.

    Returns:
        The mean of what the updates of the last epoch told.

    Raises:
        KeyError: a column to standardise is not there.
        WorkerLate: another rank has not come in time, where several learn as one.
    """
    infos: list[dict[str, Any]] = []
    rows = _prepared(batch, fields)
    for _ in range(epochs):
        infos = [policy.learn_on_batch(part) for part in _parts(policy, rows, size, generator)]
    told: dict[str, Any] = _mean(infos)
    return told


def standardized(column: Any) -> np.ndarray[Any, Any]:
    """A column with mean 0 and std 1, or less where the std is below 1e-4."""
    values = np.asarray(column)
    made: np.ndarray[Any, Any] = (values - values.mean()) / max(_SMALLEST_STD, values.std())
    return made.astype(values.dtype if np.issubdtype(values.dtype, np.floating) else np.float32)


def _prepared(batch: SampleBatch, fields: Sequence[str]) -> SampleBatch:
    rows = batch.copy(shallow=True)
    missing = [field for field in fields if field not in rows]
    if missing:
        raise KeyError(f"standardize_fields names {missing}; the batch has {sorted(rows)}")
    for field in fields:
        rows[field] = standardized(rows[field])
    if ColumnNames.SEQ_LENS in rows and not rows.zero_padded:
        rows.right_zero_pad(int(rows[ColumnNames.SEQ_LENS].max()))
    return rows


def _parts(
    policy: Policy, rows: SampleBatch, size: int | None, generator: np.random.Generator | None
) -> list[SampleBatch]:
    """Minibatches, as many as every rank has: where their gradients are averaged, one that had more would wait."""
    parts = [rows] if size is None or size >= rows.count else rows.shuffle(generator).timeslices(size)
    least = min(gathered(len(parts))) if policy.distributed_world_size > 1 else len(parts)
    if least == len(parts):
        return parts
    groups = np.array_split(np.arange(len(parts)), least)
    return [concat((parts[i] for i in group), SampleBatch) for group in groups]


def _mean(infos: Sequence[Any]) -> Any:
    """Dicts by key, numbers as their mean, the last of what is neither."""
    if all(isinstance(info, dict) for info in infos):
        keys = {key: None for info in infos for key in info}
        return {key: _mean([info[key] for info in infos if key in info]) for key in keys}
    if all(isinstance(info, Real | np.ndarray) for info in infos):
        mean = np.mean(np.asarray(infos), axis=0)
        return float(mean) if mean.ndim == 0 else mean
    return infos[-1]
