"""Transitions of several policies that acted in the same envs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from tensordict import TensorDict

from swath.options import count
from swath.rollout_workers.batches.columns import refused_attribute
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID, ColumnNames
from swath.rollout_workers.batches.rows import concat, sequences_of
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.nests import Array, as_array

_SORTED_BY = (ColumnNames.EPS_ID, ColumnNames.T, ColumnNames.AGENT_INDEX)


class MultiAgentBatch:
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
        self.policy_batches = {pid: _as_batch(pid, batch) for pid, batch in policy_batches.items()}
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

        Rows are in the order of episode, time and agent, and are copies. A policy is in the parts that it has rows in.

        Raises:
            KeyError: a policy's batch lacks `eps_id`, `t` or `agent_index`.
            ValueError: k below 1, or columns of different lengths.
        """
        k, filled = count("k", k), {pid: batch for pid, batch in self.policy_batches.items() if batch.count}
        if not filled:
            return []
        episodes, times, agents = (
            np.concatenate([_column(batch, name) for batch in filled.values()]) for name in _SORTED_BY
        )
        order = np.lexsort((agents, times, episodes))
        is_new = np.diff(episodes[order], prepend=-1).astype(bool) | np.diff(times[order], prepend=-1).astype(bool)
        steps = np.cumsum(is_new | (np.arange(len(order)) == 0)) - 1
        counts = [batch.count for batch in filled.values()]
        policies = np.repeat(np.arange(len(filled)), counts)[order]
        rows = np.concatenate([np.arange(n) for n in counts])[order]
        n_steps = int(steps[-1]) + 1
        parts = []
        for first in range(0, n_steps, k):
            part = slice(*np.searchsorted(steps, (first, first + k)))
            found = {pid: rows[part][policies[part] == number] for number, pid in enumerate(filled)}
            batches = {pid: filled[pid].take(index) for pid, index in found.items() if len(index)}
            parts.append(MultiAgentBatch(batches, min(k, n_steps - first)))
        return parts

    @staticmethod
    def wrap_as_needed(policy_batches: Mapping[str, Any], env_steps: int) -> SampleBatch | MultiAgentBatch:
        """The batch itself if it is the default policy's alone, else all as a `MultiAgentBatch`.

        That batch then has the env steps of all, if they are not as many as its rows.
        """
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

    if not TYPE_CHECKING:  # a type checker must see which attributes there are not

        def __getattr__(self, name: str) -> Any:
            raise refused_attribute(self, name)

    def to_tensordict(self, keys: Iterable[str] | None = None) -> TensorDict:
        """One TensorDict per policy id, in one of batch size `[]`; see `SampleBatch.to_tensordict`."""
        return TensorDict({pid: batch.to_tensordict(keys) for pid, batch in self.policy_batches.items()}, batch_size=[])

    def size_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def __repr__(self) -> str:
        rows = ", ".join(f"{pid}: {batch.count} rows" for pid, batch in self.policy_batches.items())
        return f"MultiAgentBatch({self.count} env steps; {rows or 'no rows'})"


def _column(batch: SampleBatch, name: str) -> Array:
    """A column without padding."""
    if name not in batch:
        raise KeyError(f"timeslices need {_SORTED_BY}; a policy's batch lacks {name!r}")
    return as_array(batch[name])[sequences_of(batch).place_of_rows]


def _as_batch(policy_id: str, batch: Any) -> SampleBatch:
    if isinstance(batch, SampleBatch):
        return batch
    if not isinstance(batch, Mapping):
        raise TypeError(f"policy {policy_id!r} has {type(batch).__name__}; give a SampleBatch or a dict of columns")
    return SampleBatch(batch)


Batch = SampleBatch | MultiAgentBatch


def concat_samples(samples: Iterable[Batch]) -> Batch:
    """Batches as a new one: a `SampleBatch` if all are, else a `MultiAgentBatch`. Empty ones are passed over.

    Raises:
        ValueError: columns of different lengths, names or shapes; batches that differ in `zero_padded`, `time_major` or
            `max_seq_len`; or something that is no batch.
    """
    samples = list(samples)
    single = [sample for sample in samples if isinstance(sample, SampleBatch)]
    return concat(single, SampleBatch) if len(single) == len(samples) else concat_samples_into_ma_batch(samples)


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
    return MultiAgentBatch({policy_id: concat(batches, SampleBatch) for policy_id, batches in parts.items()}, env_steps)


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
