"""A batch on its way into a loss, and what is told of the update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from swath.rollout_workers.batches.leaves import array_of
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.metrics import LEARNER_STATS


def to_train_on(samples: Mapping[str, Any], *, recurrent: bool) -> SampleBatch:
    """A batch with columns of its own, sequences padded to equal length; the given one stays as it is.

    Raises:
        ValueError: no rows, or no `seq_lens` for a policy that remembers.
    """
    batch = samples.copy(shallow=True) if isinstance(samples, SampleBatch) else SampleBatch(samples)
    if not batch.count:
        raise ValueError(f"there is nothing to learn from in {batch!r}; give a batch with rows")
    if recurrent and not batch.zero_padded:
        if ColumnNames.SEQ_LENS not in batch:
            raise ValueError(f"a policy that remembers learns from sequences, but {batch!r} has no 'seq_lens'")
        batch.right_zero_pad(int(batch[ColumnNames.SEQ_LENS].max()))
    return batch


def info_of(batch: SampleBatch, stats: dict[str, Any], told: dict[str, Any], updates: int) -> dict[str, Any]:
    """What is told of an update.

    Args:
        batch: learnt from.
        stats: of the loss.
        told: by callbacks.
        updates: of the policy in its life, with this one.
    """
    return {
        LEARNER_STATS: stats,
        "model": {},
        "custom_metrics": told,
        "num_agent_steps_trained": batch.count,
        "num_grad_updates_lifetime": updates,
        "diff_num_grad_updates_vs_sampler_policy": updates - 1 - (batch.num_grad_updates or 0),
    }


def as_numbers(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars as Python's numbers, larger tensors as arrays."""
    return {name: _as_number(value) for name, value in stats.items()}


def _as_number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = array_of(value.detach())
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 else value
