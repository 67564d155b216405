"""Transitions of several policies that acted in the same envs, and batches put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from tensordict import TensorDict

from swath.options import count
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID, ColumnNames
from swath.rollout_workers.batches.rows import Refusing
from swath.rollout_workers.batches.sample_batch import SampleBatch, concat
from swath.rollout_workers.nests import as_array


class MultiAgentBatch(Refusing):
    """One `SampleBatch` per policy, and how many env steps they are from together.

    Args:
        policy_batches: batches, or dicts of columns, by policy id.
        env_steps: of all; one step may give rows to several policies.

    Attributes:
        policy_batches: the batches.
        count: the env steps.

    Raises:
        TypeError: the batch of a policy is something else.
    """

    def __init__(self, policy_batches: Mapping[str, Any], env_steps: int) -> None:
        self.policy_batches: dict[str, SampleBatch] = {}
        for pid, batch in policy_batches.items():
            if not isinstance(batch, Mapping):
                raise TypeError(f"policy {pid!r} has {type(batch).__name__}; give a SampleBatch or a dict of columns")
            self.policy_batches[pid] = batch if isinstance(batch, SampleBatch) else SampleBatch(batch)
        self.count = count("env_steps", env_steps, least=0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, policy_id: str) -> SampleBatch:
        if policy_id not in self.policy_batches:
            raise KeyError(f"no rows of policy {policy_id!r}; the batch has those of {sorted(self.policy_batches)}")
        return self.policy_batches[policy_id]

    def env_steps(self) -> int:
        """Env steps that the rows are from."""
        return self.count

    def agent_steps(self) -> int:
        """Rows of all policies."""
        return sum(batch.count for batch in self.policy_batches.values())

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Parts of k env steps, with the rows of all agents at these steps; the last part may be shorter.

            policy  a a a b b        sorted by episode, time, agent:   a b │ a b │ a
            t       0 1 2 0 1                           env step:        0     1    2

        Rows are copies, in the order of episode, time and agent. A policy is in the parts that it has rows in.

        Raises:
            KeyError: a policy's batch lacks `eps_id`, `t` or `agent_index`.
            ValueError: k below 1, or columns of different lengths.
        """
        k, filled = count("k", k), {pid: batch.unpadded() for pid, batch in self.policy_batches.items() if batch.count}
        if not filled:
            return []
        by = ColumnNames.AGENT_INDEX, ColumnNames.T, ColumnNames.EPS_ID
        columns = np.concatenate([[as_array(each) for each in batch.columns(by)] for batch in filled.values()], axis=1)
        order = np.lexsort(columns)
        steps = np.append(0, np.cumsum(np.diff(columns[1:, order]).any(axis=0)))
        whose = np.repeat(np.arange(len(filled)), [batch.count for batch in filled.values()])
        rows, parts = np.concatenate([np.arange(batch.count) for batch in filled.values()]), list[MultiAgentBatch]()
        n_steps = int(steps[-1]) + 1
        for first in range(0, n_steps, k):
            part = order[slice(*np.searchsorted(steps, (first, first + k)))]
            found = {pid: rows[part[whose[part] == number]] for number, pid in enumerate(filled)}
            batches = {pid: filled[pid].take(index) for pid, index in found.items() if len(index)}
            parts.append(MultiAgentBatch(batches, min(k, n_steps - first)))
        return parts

    @staticmethod
    def wrap_as_needed(policy_batches: Mapping[str, Any], env_steps: int) -> SampleBatch | MultiAgentBatch:
        """The batch itself, as `alone` gives it, if it is the default policy's alone; else a `MultiAgentBatch`."""
        whole = MultiAgentBatch(policy_batches, env_steps)
        return whole.alone() if set(policy_batches) == {DEFAULT_POLICY_ID} else whole

    def alone(self) -> SampleBatch:
        """The batch of the default policy, which then has the env steps of all, if they are not as many as its rows."""
        batch = self[DEFAULT_POLICY_ID]
        if batch.env_steps() != self.count:
            batch.own_env_steps = self.count
        return batch

    def as_multi_agent(self) -> MultiAgentBatch:
        """This batch."""
        return self

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """A batch with arrays of its own; shallow, with the same arrays."""
        return MultiAgentBatch({pid: batch.copy(shallow) for pid, batch in self.policy_batches.items()}, self.count)

    def to_device(self, device: Any, *options: Any, **named: Any) -> Self:
        """Each policy's columns as tensors on a device, in place; see `SampleBatch.to_device`."""
        for batch in self.policy_batches.values():
            batch.to_device(device, *options, **named)
        return self

    def to_tensordict(self, keys: Iterable[str] | None = None) -> TensorDict:
        """One TensorDict per policy id, in one of batch size `[]`; see `SampleBatch.to_tensordict`."""
        return TensorDict({pid: batch.to_tensordict(keys) for pid, batch in self.policy_batches.items()}, batch_size=[])

    def size_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def __repr__(self) -> str:
        rows = ", ".join(f"{pid}: {batch.count} rows" for pid, batch in self.policy_batches.items())
        return f"MultiAgentBatch({self.count} env steps; {rows or 'no rows'})"


def concat_samples(samples: Iterable[SampleBatch | MultiAgentBatch]) -> SampleBatch | MultiAgentBatch:
    """Batches as a new one: a `SampleBatch` if all are, else a `MultiAgentBatch`. Empty ones are passed over.

    Raises:
        ValueError: columns of different lengths, names or shapes; batches that differ in `zero_padded`, `time_major` or
            `max_seq_len`; or something that is no batch.
    """
    samples = list(samples)
    single = [sample for sample in samples if isinstance(sample, SampleBatch)]
    return concat(single) if len(single) == len(samples) else concat_samples_into_ma_batch(samples)


def concat_samples_into_ma_batch(samples: Iterable[SampleBatch | MultiAgentBatch]) -> MultiAgentBatch:
    """Batches as a new `MultiAgentBatch`; a `SampleBatch` counts as the default policy's.

    Raises:
        ValueError: as `concat_samples`.
    """
    parts: dict[str, list[SampleBatch]] = {}
    env_steps = 0
    for sample in samples:
        if not isinstance(sample, SampleBatch | MultiAgentBatch):
            raise ValueError(f"{type(sample).__name__} is no SampleBatch or MultiAgentBatch")  # noqa: TRY004  as the peer
        if isinstance(sample, SampleBatch) and not sample.count:
            continue
        several = sample.as_multi_agent()
        env_steps += several.count
        for policy_id, batch in several.policy_batches.items():
            parts.setdefault(policy_id, []).append(batch)
    return MultiAgentBatch({policy_id: concat(batches) for policy_id, batches in parts.items()}, env_steps)


def convert_ma_batch_to_sample_batch(batch: SampleBatch | MultiAgentBatch) -> SampleBatch:
    """The batch itself, or that of the default policy, which then has the env steps of all.

    Raises:
        ValueError: a `MultiAgentBatch` of any other policies.
    """
    if not isinstance(batch, MultiAgentBatch):
        return batch
    if set(batch.policy_batches) != {DEFAULT_POLICY_ID}:
        raise ValueError(f"rows of {sorted(batch.policy_batches)} are no single SampleBatch: take batch[policy_id]")
    return batch.alone()
