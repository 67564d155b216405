"""Sequences for recurrent policies: chunks cut every so many rows, with the state at the beginning of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from swath.rollout_workers.batches.names import ColumnNames, is_state_in
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.nests import map_nest


def as_learnt_from(policy: Any, batch: SampleBatch, lengths: Sequence[int]) -> SampleBatch:
    """The batch as a policy learns from it: chunks of these lengths, in sequences if it is recurrent."""
    if not policy.is_recurrent() or not batch.count:
        return batch
    return in_sequences(batch, lengths, policy.config["model"]["max_seq_len"])


def in_sequences(batch: SampleBatch, lengths: Sequence[int], most: int) -> SampleBatch:
    """The batch with `seq_lens`, and one row per sequence in `state_in_…`.

    Args:
        batch: chunks, one behind the other, with one row per transition in `state_in_…`.
        lengths: rows of each chunk.
        most: rows of a sequence.
    """
    seq_lens = [min(most, length - begin) for length in lengths for begin in range(0, length, most)]
    first = np.cumsum([0, *seq_lens[:-1]])
    columns = {
        name: map_nest(lambda leaf: leaf[first], column) if is_state_in(name) else column
        for name, column in batch.items()
    }
    columns[ColumnNames.SEQ_LENS] = np.array(seq_lens, dtype=np.int32)
    return SampleBatch(columns, _max_seq_len=most, _num_grad_updates=batch.num_grad_updates)
