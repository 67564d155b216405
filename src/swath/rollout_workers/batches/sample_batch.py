"""What workers hand out: transitions of one policy, as columns, and those of several that acted in the same envs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from tensordict import TensorDict, TensorDictBase

from swath.options import count
from swath.rollout_workers.batches.columns import refused_attribute
from swath.rollout_workers.batches.names import (
    DEFAULT_POLICY_ID,
    SHIFTED,
    ColumnNames,
    ViewRequirement,
    counts_sequences,
    is_state_in,
    require_own_step,
    state_out_of,
)
from swath.rollout_workers.batches.rows import Rows, Sequences, concat
from swath.rollout_workers.batches.tensordicts import columns_of, to_tensordict
from swath.rollout_workers.nests import Array, as_array, map_nest, take

# Where the last row holds what these columns hold in the step behind it.
_BEHIND = {ColumnNames.OBS: ColumnNames.NEXT_OBS, **SHIFTED}
_SORTED_BY = (ColumnNames.EPS_ID, ColumnNames.T, ColumnNames.AGENT_INDEX)


class SampleBatch(ColumnNames, Rows):
    """Transitions of one policy: a dict of columns, one row per transition.

    ```python
    batch = SampleBatch({"obs": obs, "rewards": [0.0, 1.0, 1.0]}, eps_id=[7, 7, 7])
    batch["rewards"], len(batch), batch[1:], batch.split_by_episode(), batch.to_tensordict()
    ```

    Columns are NumPy arrays or tensors whose first dimension counts rows; dicts and tuples of such are allowed. Lists
    and numbers become arrays, except in `infos`. `dones` is computed and cannot be set. With `seq_lens` rows are in
    sequences, and `state_in_0`, … have one row per sequence.

    A batch of unequal columns can be built; operations on rows then raise `ValueError`, as `check_lengths` does.

    Args:
        args: as for `dict`.
        columns: further columns by name.
        _time_major: columns are `[T, B, …]`.
        _max_seq_len: no sequence is longer; by default the length of the longest.
        _zero_padded: each sequence takes `_max_seq_len` rows, with zeros behind its end.
        _is_training: the batch is for an update, not for choosing actions.
        _num_grad_updates: of the policy that acted.
    """

    def agent_steps(self) -> int:
        """Rows."""
        return self.count

    def to_tensordict(self, keys: Iterable[str] | None = None) -> TensorDict:
        """These columns, by default all with `dones`, as a TensorDict of batch size `[n]` in the same memory.

        Names are those of Swath's other batches: `obs` is `"observation"`, `rewards` is `("next", "reward")` `[n, 1]`.
        Read-only arrays are copied. `seq_lens` and states of sequences are non-tensor entries; padding counts as rows.

        Raises:
            KeyError: no such column.
            ValueError: columns of different lengths.
        """
        flags = {ColumnNames.TERMINATEDS, ColumnNames.TRUNCATEDS} & self.keys()
        names = [*self, *([ColumnNames.DONES] if flags else [])] if keys is None else keys
        whole = filter(counts_sequences, self) if ColumnNames.SEQ_LENS in self else ()
        return to_tensordict({name: self[name] for name in names}, int(self.sequences().bounds[-1]), set(whole))

    @classmethod
    def from_tensordict(cls, td: TensorDictBase) -> Self:
        """The entries of a TensorDict `[n]`, or `[B, T]` with rows by env, as columns in the same memory.

        Frames that a mask leaves out are left out.

        Raises:
            ValueError: another batch size.
        """
        return cls(columns_of(td))

    def is_single_trajectory(self) -> bool:
        """Whether no row but the last is done."""
        return not self._valid_dones()[:-1].any()

    def is_terminated_or_truncated(self) -> bool:
        """Whether the last row is done."""
        return bool(self._valid_dones()[-1:].any())

    def get_single_step_input_dict(
        self, view_requirements: dict[str, ViewRequirement] | None = None, index: str | int = "last"
    ) -> Self:
        """One row of this trajectory as input for a policy.

        time     0     1     2   "last"
        obs      o0    o1    o2   new_obs of 2
        actions  a0    a1    a2   none yet             prev_actions at "last" is a2, at 0 zeros

        Args:
            view_requirements: columns of the input; None for the observation and, where known, the action and the
                reward before it and the state.
            index: which row, negative from the end. "last" stands for the step behind the last row, made of its
                `new_obs`, action, reward, state.

        Raises:
            IndexError: no such row.
            KeyError: a column that the batch cannot give.
            ValueError: another shift than 0 and -1.
        """
        columns, n_rows = self._row_by_row(), self.count
        row = n_rows if index == "last" else int(index)
        if not n_rows or not -n_rows <= row < n_rows + (index == "last"):
            raise IndexError(f"index={index}, but the batch has {n_rows} rows")
        if view_requirements is None:
            wanted = [ColumnNames.OBS, *(name for name in SHIFTED if SHIFTED[name] in self), *filter(is_state_in, self)]
        else:
            for name, view in view_requirements.items():
                require_own_step(name, view)
            wanted = [name for name, view in view_requirements.items() if view.used_for_compute_actions]
        row = row + n_rows if row < 0 else row
        made = self.like({name: _input(columns, name, row, n_rows) for name in wanted})
        made[ColumnNames.SEQ_LENS], made.zero_padded = [1], False
        return made

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """This batch as that of one policy, by default the default one, with the same env steps."""
        return MultiAgentBatch({module_id or DEFAULT_POLICY_ID: self}, self.env_steps())

    def __repr__(self) -> str:
        seq_lens = dict.get(self, ColumnNames.SEQ_LENS)
        grouped = "" if seq_lens is None else f" in {len(seq_lens)} sequences"
        return f"SampleBatch({self.count} rows{grouped}: {', '.join(self)})"

    def _valid_dones(self) -> Array:
        """The `dones` of the rows, without padding."""
        return np.asarray(as_array(self[ColumnNames.DONES])[Sequences.of(self).place_of_rows])


def _input(columns: SampleBatch, name: str, row: int, n_rows: int) -> Any:
    """What a column holds in a row, or in the step behind the last."""
    source = name
    if row == n_rows:
        source, row = state_out_of(name) if is_state_in(name) else _BEHIND.get(name, name), row - 1
    elif name not in columns and name in SHIFTED:
        source, row = SHIFTED[name], row - 1
    if source not in columns:
        raise KeyError(f"the input needs column {source!r}; the batch has {sorted(columns)}")
    return map_nest(partial(take, rows=np.array([row])), columns[source])


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
    return as_array(batch[name])[batch.sequences().place_of_rows]


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
