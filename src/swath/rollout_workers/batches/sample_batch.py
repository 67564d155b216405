"""The batches of workers: transitions of one policy, as columns, or of several that acted in the same envs.

Batches are concatenated, and columns become a TensorDict and are read from one, in the same memory:

obs                        ──▶  observation
rewards [n]                ──▶  ("next", "reward") [n, 1]
actions {"a": …}, (…, …)   ──▶  ("action", "a"), ("action", "0"), …
infos, agent_id            ──▶  non-tensor entries, one per row
seq_lens, state_in_0       ──▶  non-tensor entries, whole: they have no row per transition
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import partial
from numbers import Number
from typing import Any, Self

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor

from swath import keys
from swath.keys import MASK, Key, as_tuple, nest_entries
from swath.options import count
from swath.rollout_workers import nests
from swath.rollout_workers.batches import names
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID, SHIFTED, ColumnNames, ViewRequirement
from swath.rollout_workers.batches.rows import ColumnDict, ExplainsMissing
from swath.rollout_workers.nests import ARRAYS, Leaf, as_array, holds_objects, leaves, map_nest

# Keys in a TensorDict of columns that have another name there.
KEYS: dict[str, Key] = {
    ColumnNames.OBS: keys.OBSERVATION,
    ColumnNames.ACTIONS: keys.ACTION,
    ColumnNames.REWARDS: (keys.NEXT, keys.REWARD),
    ColumnNames.NEXT_OBS: (keys.NEXT, keys.OBSERVATION),
    ColumnNames.TERMINATEDS: (keys.NEXT, keys.TERMINATED),
    ColumnNames.TRUNCATEDS: (keys.NEXT, keys.TRUNCATED),
    ColumnNames.DONES: (keys.NEXT, keys.DONE),
    ColumnNames.T: keys.STEP_COUNT,
    ColumnNames.EPS_ID: keys.TRAJ_IDS,
    ColumnNames.POLICY_VERSION: keys.VERSION,
    ColumnNames.ACTION_LOGP: keys.SAMPLE_LOG_PROB,
    ColumnNames.VF_PREDS: keys.STATE_VALUE,
    ColumnNames.ADVANTAGES: keys.ADVANTAGE,
    ColumnNames.VALUE_TARGETS: keys.VALUE_TARGET,
}
_COLUMNS = {key: name for name, key in KEYS.items()}

# Entries that become no column: the mask, and at the root the flags of the step before.
_LEFT_OUT = (MASK, *keys.FLAGS)

# Columns `[n]` that are `[n, 1]` in a TensorDict.
SCALAR_COLUMNS = (
    *(ColumnNames.REWARDS, ColumnNames.TERMINATEDS, ColumnNames.TRUNCATEDS, ColumnNames.DONES, ColumnNames.T),
    *(ColumnNames.VF_PREDS, ColumnNames.VALUES_BOOTSTRAPPED, ColumnNames.ADVANTAGES, ColumnNames.VALUE_TARGETS),
)


def _entry(name: str, leaf: Leaf, n_rows: int, *, has_rows: bool) -> Any:
    if not has_rows or nests.rows_of(leaf) is None:
        return NonTensorData(leaf, batch_size=[n_rows])
    if holds_objects(leaf):
        return NonTensorStack(*map(NonTensorData, leaf)) if n_rows else NonTensorData(None, batch_size=[0])
    tensor = nests.tensor_of(leaf)
    return tensor.unsqueeze(-1) if name in SCALAR_COLUMNS and tensor.ndim == 1 else tensor


def columns_of(td: TensorDictBase) -> dict[str, Any]:
    """Return the entries of a TensorDict `[n]`, or `[B, T]`, whose rows are then by env, as columns.

    Numbers stay in the same memory if that is the host's, else columns are tensors. Frames that a mask excludes are
    left out, and the root flags of the step before. Nested entries `"0"`, `"1"`, … become a tuple.

    Raises:
        ValueError: another batch size.
    """
    if td.ndim not in (1, 2):
        raise ValueError(f"batch size {list(td.batch_size)} must be [n] or [B, T]; reshape the TensorDict")
    flat = td if td.ndim == 1 else td.reshape(-1)
    mask = flat.get(MASK, None)
    if mask is not None and not bool(mask.all()):
        flat = flat[mask]
    entries = ((_COLUMNS.get(key, key), entry) for key, entry in _entries(flat) if key not in _LEFT_OUT)
    columns = {name: _column(name, entry) for name, entry in entries}
    if keys.LOG_PROB in columns:
        columns.setdefault(ColumnNames.ACTION_LOGP, columns.pop(keys.LOG_PROB))
    if ColumnNames.DONES in columns:  # read only if no other entry says how episodes ended
        columns.setdefault(ColumnNames.TERMINATEDS, columns.pop(ColumnNames.DONES))
    return nest_entries(columns.items())


def _entries(td: TensorDictBase) -> Iterator[tuple[Key, Any]]:
    for key, entry in td.items():
        if key in (keys.NEXT, keys.COLLECTOR):
            yield from (((key, inner), part) for inner, part in entry.items())
        else:
            yield key, entry


def _column(name: Key, entry: Any) -> Any:
    if isinstance(entry, NonTensorData) and isinstance(entry.data, ARRAYS):
        return entry.data
    if is_non_tensor(entry):
        rows = [entry.data] * entry.batch_size[0] if isinstance(entry, NonTensorData) else entry.tolist()
        return rows if name == ColumnNames.INFOS else nests.object_array(rows)
    if isinstance(entry, TensorDictBase):
        parts = {key: _column(name, part) for key, part in entry.items()}
        return tuple(parts.values()) if list(parts) == [str(i) for i in range(len(parts))] else parts
    tensor = entry.detach()
    if name in SCALAR_COLUMNS and tensor.ndim == 2 and tensor.shape[-1] == 1:
        tensor = tensor.squeeze(-1)
    is_in_numpy = tensor.device.type == "cpu" and tensor.dtype != torch.bfloat16
    return tensor.numpy() if is_in_numpy else tensor


# The columns whose last row becomes these columns in the step after it.
_SOURCES_OF_NEXT_STEP = {ColumnNames.OBS: ColumnNames.NEXT_OBS, **SHIFTED}


class SampleBatch(ColumnDict):
    """Transitions of one policy: a dict of columns, one row per transition.

    ```python
    batch = SampleBatch({"obs": obs, "rewards": [0.0, 1.0, 1.0]}, eps_id=[7, 7, 7])
    batch["rewards"], len(batch), batch[1:], batch.split_by_episode(), batch.to_tensordict()
    ```

    Columns are NumPy arrays or tensors whose first dimension counts rows; dicts and tuples of arrays are allowed. Lists
    and numbers become arrays, except in `infos`. `dones` is computed and cannot be set. With `seq_lens` rows are in
    sequences, and `state_in_0`, … have one row per sequence.

    A batch of unequal columns can be built; operations on rows then raise `ValueError`, as `check_lengths` does.
    Keywords are further columns, or attributes if they begin with `_`.

    Attributes:
        num_grad_updates: of the policy that acted; a mean, if there were several.
        is_training: the batch is for an update, not for choosing actions.
    """

    def __init__(
        self,
        *args: Any,
        _time_major: bool | None = None,
        _max_seq_len: int | None = None,
        _zero_padded: bool = False,
        _is_training: bool | None = None,
        _num_grad_updates: float | None = None,
        **columns: Any,
    ) -> None:
        super().__init__()
        self.update(*args, **columns)
        seq_lens = dict.get(self, self.SEQ_LENS)
        if seq_lens is None:
            self.pop(self.SEQ_LENS, None)
        elif _max_seq_len is None and len(seq_lens):
            _max_seq_len = int(seq_lens.max())
        self.time_major, self.max_seq_len, self.zero_padded = _time_major, _max_seq_len, _zero_padded
        self.num_grad_updates, self.is_training = _num_grad_updates, bool(_is_training)

    def agent_steps(self) -> int:
        """Return the number of rows."""
        return self.count

    def env_steps(self) -> int:
        """Return the number of env steps; it equals the rows, unless several agents shared an env."""
        return self.count if self.shared_env_steps is None else self.shared_env_steps

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"there is no column {name!r}; there are {', '.join(self) or 'none'}")

    def __setitem__(self, name: str, column: Any) -> None:
        if name == self.DONES:
            raise KeyError("'dones' cannot be set: it is computed; set 'terminateds' and 'truncateds'")
        if name == self.SEQ_LENS and isinstance(column, list | tuple):
            column = np.array(column, dtype=np.int32) if column else None
        elif not isinstance(column, ARRAYS) and name != self.INFOS:
            column = map_nest(lambda leaf: np.array(leaf) if isinstance(leaf, list | Number) else leaf, column)
        super().__setitem__(name, column)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a column, or the default if there is none."""
        try:
            return self[name]
        except KeyError:
            return default

    def update(self, *args: Any, **columns: Any) -> None:
        """Set several columns."""
        for name, column in dict(*args, **columns).items():
            self[name] = column

    def columns(self, keys: Iterable[str]) -> list[Any]:
        """Return these columns."""
        return [self[key] for key in keys]

    def set_training(self, training: bool = True) -> None:
        """Set whether the batch is for an update."""
        self.is_training = training

    def copy(self, shallow: bool = False) -> Self:
        """Return a batch with new arrays; shallow, with the same arrays.

        Objects in `infos` and the like are the same in both.
        """
        batch = self.with_columns(dict(self) if shallow else self.map_leaves(_copy_leaf))
        batch.shared_env_steps = self.shared_env_steps
        return batch

    def concat(self, other: SampleBatch) -> SampleBatch:
        """Return a new batch of both, as `concat_samples` makes it."""
        return concat([self, other])

    def to_device(
        self,
        device: Any,
        framework: str = "torch",
        pin_memory: bool = False,
        use_stream: bool = False,
        stream: Any = None,
    ) -> Self:
        """Move the columns to a device as tensors, in place; float64 becomes float32, `infos` and objects stay.

        On the CPU tensors share memory with the arrays that they are made of.

        Args:
            device: where to.
            framework: only "torch".
            pin_memory: copy to a CUDA device through page-locked memory.
            use_stream: refused; so is `stream`.
            stream: None.

        Returns:
            This batch.

        Raises:
            NotImplementedError: another framework.
            ValueError: `use_stream` or `stream`.
        """
        if framework != "torch":
            raise NotImplementedError(f"framework={framework!r} is not served; use 'torch'")
        if use_stream or stream is not None:
            raise ValueError("use_stream and stream are not served; call to_device() under torch.cuda.stream(…)")
        target = torch.device("cpu" if device is None else device)

        def move_leaf(leaf: Leaf) -> Leaf:
            has_numbers = isinstance(leaf, ARRAYS) and not nests.holds_objects(leaf)
            return nests.tensor_on(target, leaf, pin=pin_memory) if has_numbers else leaf

        dict.update(self, self.map_leaves(move_leaf))
        return self

    def to_tensordict(self, keys: Iterable[str] | None = None) -> TensorDict:
        """Return these columns, by default all with `dones`, as a TensorDict `[n]` in the same memory.

        Names are as in Swath's other batches: `obs` is `"observation"`, `rewards` is `("next", "reward")` `[n, 1]`.
        Read-only arrays are copied. `seq_lens` and states of sequences are non-tensor entries; padding counts as rows.

        Raises:
            KeyError: a column is missing.
            ValueError: columns of different lengths.
        """
        lengths, dones = self.sequences(), [self.DONES] if {self.TERMINATEDS, self.TRUNCATEDS} & self.keys() else []
        n_rows, entries = self.count if lengths is None else int(self.places(lengths).sum()), list[tuple[Key, Any]]()
        for name in [*self, *dones] if keys is None else keys:
            has_rows = lengths is None or not names.counts_sequences(name)
            for path, leaf in leaves(self[name]):
                entry = _entry(name, leaf, n_rows, has_rows=has_rows)
                entries.append(((*as_tuple(KEYS.get(name, name)), *map(str, path)), entry))
        return TensorDict(nest_entries(entries), batch_size=[n_rows])

    @classmethod
    def from_tensordict(cls, td: TensorDictBase) -> Self:
        """Build a batch from a TensorDict `[n]`, or `[B, T]` with rows by env, in the same memory.

        Frames that a mask leaves out are left out.

        Raises:
            ValueError: another batch size.
        """
        return cls(columns_of(td))

    def is_single_trajectory(self) -> bool:
        """Return whether no row but the last is done."""
        return not as_array(self.unpadded()[self.DONES])[:-1].any()

    def is_terminated_or_truncated(self) -> bool:
        """Return whether the last row is done."""
        return bool(as_array(self.unpadded()[self.DONES])[-1:].any())

    def get_single_step_input_dict(
        self, view_requirements: Mapping[str, ViewRequirement] | None = None, index: str | int = "last"
    ) -> Self:
        """Return one row of this trajectory as input for a policy.

        time     0     1     2   "last"
        obs      o0    o1    o2   new_obs of 2
        actions  a0    a1    a2   none yet             prev_actions at "last" is a2, at 0 zeros

        Args:
            view_requirements: columns of the input; None for the observation and, where known, the action and the
                reward before it and the state.
            index: which row, negative from the end. "last" is the step after the last row, made of that row's
                `new_obs`, action, reward, state.

        Raises:
            IndexError: the row is missing.
            KeyError: a column is missing.
            ValueError: a view of another step.
        """
        columns, is_next_step = self.row_by_row(), index == "last"
        row = range(self.count)[-1 if is_next_step else int(index)]
        if view_requirements is None:
            before = (name for name, source in SHIFTED.items() if source in self)
            view_requirements = dict.fromkeys((self.OBS, *before, *filter(names.is_state_in, self)), ViewRequirement())
        selected: dict[str, Any] = {}
        for name, view in view_requirements.items():
            view.require_own_step(name)
            source, source_row = name, row
            if is_next_step:
                source = names.state_out_of(name) if names.is_state_in(name) else _SOURCES_OF_NEXT_STEP.get(name, name)
            elif name not in self and name in SHIFTED:
                source, source_row = SHIFTED[name], row - 1
            if view.used_for_compute_actions:
                selected[name] = map_nest(partial(nests.take, rows=np.array([source_row])), columns[source])
        batch = self.with_columns(selected)
        batch[self.SEQ_LENS], batch.zero_padded = [1], False
        return batch

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """Return a batch of one policy, by default the default one, with the same env steps."""
        return MultiAgentBatch({module_id or DEFAULT_POLICY_ID: self}, self.env_steps())

    def size_bytes(self) -> int:
        """Return the bytes of all leaves."""
        return sum(leaf.nbytes if isinstance(leaf, ARRAYS) else sys.getsizeof(leaf) for _, leaf in leaves(dict(self)))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Return columns and attributes, arrays without gaps: NumPy pickles only these out of band."""
        return type(self), (self.map_leaves(_to_contiguous),), vars(self).copy()

    def __repr__(self) -> str:
        lengths = self.lengths()
        grouped = "" if lengths is None else f" in {len(lengths)} sequences"
        return f"SampleBatch({self.count} rows{grouped}: {', '.join(self)})"


def concat(batches: Iterable[SampleBatch]) -> SampleBatch:
    """Concatenate batches to a new one; skip empty ones.

    Raises:
        ValueError: columns of different lengths, names, structures or shapes, or batches that differ in `zero_padded`,
            `time_major` or `max_seq_len`.
    """
    filled = [batch for batch in batches if batch.count]
    if not filled:
        return SampleBatch()
    first = filled[0]
    for batch in filled:
        batch.check_lengths()
        _require_alike(first, batch)
    whole_batch = first.with_columns({})
    for name in first:
        axis = 1 if first.time_major and not names.counts_sequences(name) else 0
        columns = [dict.__getitem__(batch, name) for batch in filled]
        try:
            dict.__setitem__(whole_batch, name, map_nest(partial(nests.concatenate, axis=axis), *columns))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"columns named {name!r} do not fit: {error}") from error
    if first.max_seq_len is not None:
        whole_batch.max_seq_len = max(batch.max_seq_len or 0 for batch in filled)
    updates = [(batch.num_grad_updates, batch.count) for batch in filled if batch.num_grad_updates is not None]
    if updates:
        whole_batch.num_grad_updates = sum(n * rows for n, rows in updates) / sum(rows for _, rows in updates)
    whole_batch.is_training = all(batch.is_training for batch in filled)
    if any(batch.shared_env_steps is not None for batch in filled):
        whole_batch.shared_env_steps = sum(batch.env_steps() for batch in filled)
    return whole_batch


def _require_alike(first: SampleBatch, batch: SampleBatch) -> None:
    """Raise `ValueError` unless the second batch can follow the first."""
    if missing := first.keys() ^ batch.keys():
        raise ValueError(f"columns {sorted(missing)} are in some batches only; give them to all, or delete them")
    for trait in ("zero_padded", "time_major", "max_seq_len"):
        values = getattr(first, trait), getattr(batch, trait)
        may_differ = trait == "max_seq_len" and not first.zero_padded and None not in values
        if values[0] != values[1] and not may_differ:
            raise ValueError(f"batches differ in {trait}: {values[0]} and {values[1]}; it must be the same in all")


def _copy_leaf(leaf: Leaf) -> Leaf:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else copy(leaf)


def _to_contiguous(leaf: Leaf) -> Leaf:
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.forc else leaf


class MultiAgentBatch(ExplainsMissing):
    """One `SampleBatch` per policy, and the number of their common env steps.

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
        self.count = count("env_steps", env_steps, minimum=0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, policy_id: str) -> SampleBatch:
        if policy_id not in self.policy_batches:
            raise KeyError(f"no rows of policy {policy_id!r}; the batch has rows of {sorted(self.policy_batches)}")
        return self.policy_batches[policy_id]

    def env_steps(self) -> int:
        """Return the number of env steps."""
        return self.count

    def agent_steps(self) -> int:
        """Return the rows of all policies."""
        return sum(batch.count for batch in self.policy_batches.values())

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Split into parts of k env steps, with the rows of all agents at these steps; the last part may be shorter.

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
        sort_keys = ColumnNames.AGENT_INDEX, ColumnNames.T, ColumnNames.EPS_ID
        columns = np.concatenate([[*map(as_array, batch.columns(sort_keys))] for batch in filled.values()], axis=1)
        order = np.lexsort(columns)
        steps = np.append(0, np.cumsum(np.diff(columns[1:, order]).any(axis=0)))
        policies = np.repeat(np.arange(len(filled)), [batch.count for batch in filled.values()])
        rows, parts = np.concatenate([np.arange(batch.count) for batch in filled.values()]), list[MultiAgentBatch]()
        n_steps = int(steps[-1]) + 1
        for first in range(0, n_steps, k):
            part = order[slice(*np.searchsorted(steps, (first, first + k)))]
            by_policy = {pid: rows[part[policies[part] == number]] for number, pid in enumerate(filled)}
            batches = {pid: filled[pid].take(index) for pid, index in by_policy.items() if len(index)}
            parts.append(MultiAgentBatch(batches, min(k, n_steps - first)))
        return parts

    @staticmethod
    def wrap_as_needed(policy_batches: Mapping[str, Any], env_steps: int) -> SampleBatch | MultiAgentBatch:
        """Return the `default_policy_batch` if it is the only one, else a `MultiAgentBatch`."""
        batch = MultiAgentBatch(policy_batches, env_steps)
        return batch.default_policy_batch() if set(policy_batches) == {DEFAULT_POLICY_ID} else batch

    def default_policy_batch(self) -> SampleBatch:
        """Return the batch of the default policy, with the env steps of all if its rows differ in number."""
        batch = self[DEFAULT_POLICY_ID]
        if batch.env_steps() != self.count:
            batch.shared_env_steps = self.count
        return batch

    def as_multi_agent(self) -> MultiAgentBatch:
        """Return this batch."""
        return self

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """Return a batch with new arrays; shallow, with the same arrays."""
        return MultiAgentBatch({pid: batch.copy(shallow) for pid, batch in self.policy_batches.items()}, self.count)

    def to_device(self, device: Any, *options: Any, **keywords: Any) -> Self:
        """Move each policy's columns to a device as tensors, in place; see `SampleBatch.to_device`."""
        for batch in self.policy_batches.values():
            batch.to_device(device, *options, **keywords)
        return self

    def to_tensordict(self, keys: Iterable[str] | None = None) -> TensorDict:
        """Return one TensorDict per policy id, in one of batch size `[]`; see `SampleBatch.to_tensordict`."""
        return TensorDict({pid: batch.to_tensordict(keys) for pid, batch in self.policy_batches.items()}, batch_size=[])

    def size_bytes(self) -> int:
        """Return the bytes of all columns."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def __repr__(self) -> str:
        rows = ", ".join(f"{pid}: {batch.count} rows" for pid, batch in self.policy_batches.items())
        return f"MultiAgentBatch({self.count} env steps; {rows or 'no rows'})"


def concat_samples(samples: Iterable[SampleBatch | MultiAgentBatch]) -> SampleBatch | MultiAgentBatch:
    """Concatenate batches: to a `SampleBatch` if all are, else to a `MultiAgentBatch`. Empty ones are skipped.

    Raises:
        ValueError: columns of different lengths, names or shapes; batches that differ in `zero_padded`, `time_major` or
            `max_seq_len`; or something that is no batch.
    """
    samples = list(samples)
    single = [sample for sample in samples if isinstance(sample, SampleBatch)]
    return concat(single) if len(single) == len(samples) else concat_samples_into_ma_batch(samples)


def concat_samples_into_ma_batch(samples: Iterable[SampleBatch | MultiAgentBatch]) -> MultiAgentBatch:
    """Concatenate batches to a `MultiAgentBatch`; a `SampleBatch` counts as the default policy's.

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
        ma_batch = sample.as_multi_agent()
        env_steps += ma_batch.count
        for policy_id, batch in ma_batch.policy_batches.items():
            parts.setdefault(policy_id, []).append(batch)
    return MultiAgentBatch({policy_id: concat(batches) for policy_id, batches in parts.items()}, env_steps)


def convert_ma_batch_to_sample_batch(batch: SampleBatch | MultiAgentBatch) -> SampleBatch:
    """Return the batch itself, or the default policy's, which then has the env steps of all.

    Raises:
        ValueError: a `MultiAgentBatch` of any other policies.
    """
    if not isinstance(batch, MultiAgentBatch):
        return batch
    if set(batch.policy_batches) != {DEFAULT_POLICY_ID}:
        raise ValueError(f"rows of {sorted(batch.policy_batches)} are no single SampleBatch: take batch[policy_id]")
    return batch.default_policy_batch()
