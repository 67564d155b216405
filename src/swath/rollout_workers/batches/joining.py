"""Batches one behind another."""

from __future__ import annotations

from collections.abc import Iterable

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch, concat

Batch = SampleBatch | MultiAgentBatch


def concat_samples(samples: Iterable[Batch]) -> Batch:
    """Batches as a new one: a `SampleBatch` if all are, else a `MultiAgentBatch`. Empty ones are passed over.

    Raises:
        ValueError: columns of different lengths, names or shapes; batches that differ in `zero_padded`, `time_major` or
            `max_seq_len`; or something that is no batch.
    """
    samples = list(samples)
    single = [sample for sample in samples if isinstance(sample, SampleBatch)]
    return concat(single) if len(single) == len(samples) else concat_samples_into_ma_batch(samples)


def concat_samples_into_ma_batch(samples: Iterable[Batch]) -> MultiAgentBatch:
    """Batches as a new `MultiAgentBatch`; a `SampleBatch` counts as the default policy's.

    Raises:
        ValueError: as `concat_samples`.
    """
    parts: dict[str, list[SampleBatch]] = {}
    env_steps = 0
    for sample in samples:
        if not isinstance(sample, Batch):
            raise ValueError(  # noqa: TRY004  as the peer's
                f"{type(sample).__name__} is no SampleBatch or MultiAgentBatch and cannot be joined with one"
            )
        if isinstance(sample, SampleBatch) and not sample.count:
            continue
        several = sample.as_multi_agent()
        env_steps += several.count
        for policy_id, batch in several.policy_batches.items():
            parts.setdefault(policy_id, []).append(batch)
    return MultiAgentBatch({policy_id: concat(batches) for policy_id, batches in parts.items()}, env_steps)


def convert_ma_batch_to_sample_batch(batch: Batch) -> SampleBatch:
    """The batch itself, or that of the default policy, which then has the env steps of all.

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
