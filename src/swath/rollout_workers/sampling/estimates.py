"""Advantages and value targets of all chunks of a batch at once, for policies that are shipped."""

from __future__ import annotations

from typing import Any

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.advantages import Chunks, Estimator, estimate
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.nests import map_nest


def add_estimates(policy: Any, batch: SampleBatch, starts: Array, estimator: Estimator) -> None:
    """Write `advantages` and `value_targets`; with a critic `values_bootstrapped`, for which it is asked once.

    Args:
        policy: whose `compute_values` are the critic's.
        batch: chunks, one behind the other.
        starts: their first rows.
        estimator: which formulas.
    """
    terminated = batch[ColumnNames.TERMINATEDS]
    ends = np.zeros(len(terminated), dtype=np.bool_)
    ends[starts[1:] - 1] = ends[-1] = True
    values = batch[ColumnNames.VF_PREDS] if estimator.use_critic else None
    chunks = Chunks(batch[ColumnNames.REWARDS], values, terminated, ends)
    after = chunks.bootstrapped(_open_values(policy, batch, chunks))
    estimates = estimate(chunks, after, estimator)
    if estimator.use_critic:
        batch[ColumnNames.VALUES_BOOTSTRAPPED] = after
    batch[ColumnNames.ADVANTAGES] = estimates.advantages
    batch[ColumnNames.VALUE_TARGETS] = estimates.value_targets


def _open_values(policy: Any, batch: SampleBatch, chunks: Chunks) -> Array:
    """The values of the states behind the open ends; 0 without a critic."""
    rows = np.flatnonzero(chunks.open_ends)
    if chunks.values is None or not len(rows):
        return np.zeros(len(rows), dtype=np.float32)
    columns = {ColumnNames.OBS: batch[ColumnNames.NEXT_OBS]}
    for name in batch:
        if name.startswith(STATE_OUT):
            columns[STATE_IN + name.removeprefix(STATE_OUT)] = batch[name]
    reached = {name: map_nest(lambda leaf: leaf[rows], column) for name, column in columns.items()}
    values = policy.compute_values(reached)
    return np.asarray(values, dtype=np.float32).reshape(-1)
