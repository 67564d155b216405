"""Batches of both kinds one behind another, and from one kind to the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swath.rollout_workers.batches.concat import concat
from swath.rollout_workers.batches.multi_agent import MultiAgentBatch
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import SampleBatch


def concat_samples(samples: Iterable[SampleBatch | MultiAgentBatch]) -> SampleBatch | MultiAgentBatch:
    """Batches as a new one: a `SampleBatch` if all are, else a `MultiAgentBatch`. Empty ones are passed over.

    Raises:
        ValueError: columns of different lengths, names or shapes; batches that differ in `zero_padded`, `time_major` or
            `max_seq_len`; or something that is no batch.
    """
    samples = list(samples)
    if all(isinstance(sample, SampleBatch) for sample in samples):
        return concat([sample for sample in samples if isinstance(sample, SampleBatch)], SampleBatch)
    return concat_samples_into_ma_batch(samples)


def concat_samples_into_ma_batch(samples: Iterable[SampleBatch | MultiAgentBatch]) -> MultiAgentBatch:
    """Batches as a new `MultiAgentBatch`; a `SampleBatch` counts as the default policy's.

    Raises:
        ValueError: as `concat_samples`.
    """
    several = [_as_multi_agent(sample) for sample in samples if not _is_empty(sample)]
    policies = dict.fromkeys(pid for batch in several for pid in batch.policy_batches)
    joined = {
        pid: concat([batch[pid] for batch in several if pid in batch.policy_batches], SampleBatch) for pid in policies
    }
    return MultiAgentBatch(joined, sum(batch.count for batch in several))


def convert_ma_batch_to_sample_batch(batch: SampleBatch | MultiAgentBatch) -> SampleBatch:
    """The batch itself, or that of the default policy, told how many env steps it is from.

    Raises:
        ValueError: a `MultiAgentBatch` of any other policies.
    """
    if not isinstance(batch, MultiAgentBatch):
        return batch
    if set(batch.policy_batches) != {DEFAULT_POLICY_ID}:
        raise ValueError(
            f"rows of policies {sorted(batch.policy_batches)} are no single SampleBatch; only those of "
            f"{DEFAULT_POLICY_ID!r} alone are: take batch[policy_id]"
        )
    return batch.alone()


def _is_empty(sample: Any) -> bool:
    return isinstance(sample, SampleBatch) and not sample.count


def _as_multi_agent(sample: Any) -> MultiAgentBatch:
    if isinstance(sample, SampleBatch | MultiAgentBatch):
        return sample.as_multi_agent()
    raise ValueError(f"{type(sample).__name__} is no SampleBatch or MultiAgentBatch and cannot be joined with one")
