"""What workers hand out: transitions of one policy, as columns, and those of several that acted in the same envs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

import numpy as np
from tensordict import TensorDict, TensorDictBase

from swath.options import count
from swath.rollout_workers.batches.columns import ColumnDict, refused_attribute
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID, ColumnNames, ViewRequirement, counts_sequences
from swath.rollout_workers.batches.rows import by_step, concat, input_at, regrouped, taken, valid_places
from swath.rollout_workers.batches.tensordicts import columns_of, to_tensordict
from swath.rollout_workers.nests import Array, Leaf, as_array, rows_of

# The builtin, which the method of that name hides.
Slice: TypeAlias = slice

_EPISODE_KEYS = (ColumnNames.EPS_ID, ColumnNames.DONES)


class SampleBatch(ColumnDict):
    """Transitions of one policy: a dict of columns, one row per transition.

    ```python
    batch = SampleBatch({"obs": obs, "rewards": [0.0, 1.0, 1.0]}, eps_id=[7, 7, 7])
    batch["rewards"], len(batch), batch[1:], batch.split_by_episode(), batch.to_tensordict()
    ```

    Columns are NumPy arrays or tensors whose first dimension counts rows; dicts and tuples of such are allowed. Lists
    and numbers become arrays, except in `infos`. `dones` is computed and cannot be set. With `seq_lens` rows are in
    sequences, and `state_in_0`, … have one row per sequence.

    A batch of unequal columns can be built; operations on rows then raise `ValueError`, as `check_lengths` does.
    Keywords are further columns, and with `_` in front attributes.
    """

    @overload
    def __getitem__(self, name: Slice) -> Self: ...
    @overload
    def __getitem__(self, name: str) -> Any: ...
    def __getitem__(self, name: str | Slice) -> Any:
        if not isinstance(name, slice):
            return super().__getitem__(name)
        if name.step not in (None, 1):
            raise ValueError(f"step {name.step} of a slice of a batch must be 1; take every n-th row of the columns")
        lengths = self._sequences()
        start, stop, _ = name.indices(self.count)
        if lengths is None:
            return taken(self, slice(start, max(start, stop)))
        first, last = np.searchsorted(np.cumsum(lengths), (start, max(start, stop)), side="right")
        bounds = self._bounds(lengths)
        return taken(self, slice(bounds[first], bounds[last]), slice(first, last))

    def agent_steps(self) -> int:
        """Rows."""
        return self.count

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict; `seq_lens` is 1 in each."""
        columns = self._row_by_row()
        for i in range(self.count):
            yield columns.mapped(partial(_row, i))

    def take(self, rows: Array) -> Self:
        """The rows of these numbers `[n]`, copied: sequences of one row each, where there are sequences."""
        return taken(self, rows) if self._sequences() is None else regrouped(self.unpadded(), rows, np.ones_like(rows))

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> Self:
        """Exactly the rows from `start` to before `end`; a negative start asks for zeros in front.

        `state_start` and `state_end` bound the sequences that the rows are from, if the caller knows.

        Raises:
            ValueError: the last two are not as it is, columns of different lengths, or padded sequences.
        """
        lengths = self._sequences()
        front = max(-count("start", start, least=None), 0)
        begin = min(max(start, 0), self.count)
        stop = max(begin, min(count("end", end, least=0), self.count))
        rows: Any = np.append(np.full(front, -1), np.arange(begin, stop)) if front else slice(begin, stop)
        if lengths is None:
            return taken(self, rows)
        if self.zero_padded:
            raise ValueError("of padded sequences only whole ones can be taken; use batch[i:j], or cut before padding")
        found, new = np.unique(np.repeat(np.arange(len(lengths)), lengths)[begin:stop], return_counts=True)
        if front:  # zeros in front belong to the first
            found, new = (found, new) if len(found) else (np.zeros(1, int), np.zeros(1, int))
            new[0] += front
        span = (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)
        if (state_start, state_end) not in ((None, None), span):
            given = (state_start, state_end)
            raise ValueError(f"rows {start} to {end} are from sequences {span[0]} to {span[1]}, not {given}")
        return regrouped(self, rows if front else np.arange(begin, stop), new)

    def timeslices(self, size: int | None = None, num_slices: int | None = None, k: int | None = None) -> list[Self]:
        """Parts of `size` (or `k`) rows, the last may be shorter; or `num_slices` parts, as equal as can be.

        With `seq_lens` cuts move down to where a sequence starts, and parts that get empty by that are left out.

        Raises:
            ValueError: not exactly one of the three, or one below 1.
        """
        given = [value for value in (size, num_slices, k) if value is not None]
        if len(given) != 1:
            raise ValueError(f"timeslices takes one of size={size}, num_slices={num_slices}, k={k}")
        if num_slices is None:
            bounds = [*range(0, self.count, count("size", given[0])), self.count]
        else:
            wanted = count("num_slices", num_slices)
            bounds = [self.count * i // wanted for i in range(wanted + 1)]
        parts = [self[start:stop] for start, stop in pairwise(bounds)]
        return parts if self.SEQ_LENS not in self else [part for part in parts if part.count]

    def split_by_episode(self, key: str | None = None) -> list[Self]:
        """One batch per run of equal `eps_id`, or where that is missing per done; `key` forces "eps_id" or "dones".

        Raises:
            KeyError: no such column.
            ValueError: another key, or padded sequences.
        """
        if key not in (None, *_EPISODE_KEYS):
            raise ValueError(f"split_by_episode(key={key!r}) splits by one of {_EPISODE_KEYS}")
        key = key or (self.EPS_ID if self.EPS_ID in self else self.DONES)
        values = as_array(self[key])
        ends = values[1:] != values[:-1] if key == self.EPS_ID else values[:-1]
        bounds = [0, *(np.flatnonzero(ends) + 1).tolist(), self.count] if self.count else []
        return [self.slice(start, stop) for start, stop in pairwise(bounds)]

    def concat(self, other: SampleBatch) -> SampleBatch:
        """A new batch of both, as `concat_samples` makes it."""
        return concat([self, other], SampleBatch)

    def shuffle(self, generator: np.random.Generator | None = None) -> Self:
        """Put the rows in random order, all columns and `infos` alike, in place; padded sequences stay together.

        Returns this batch; the generator is by default NumPy's global state.

        Raises:
            ValueError: columns of different lengths, or sequences without padding.
        """
        lengths = self._sequences()
        if lengths is not None and not self.zero_padded:
            raise ValueError("rows of sequences cannot be shuffled; after right_zero_pad() whole sequences can")
        draw: Any = np.random.permutation if generator is None else generator.permutation
        order = draw(self.count if lengths is None else len(lengths))
        stride = 1 if lengths is None else self.max_seq_len or 0
        dict.update(self, taken(self, (order[:, None] * stride + np.arange(stride)).ravel(), order))
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> Self:
        """Let each sequence take `max_seq_len` rows, zeros behind its end, in place; None among objects.

        Returns this batch. `exclude_states` is always True: `state_in_…` have one row per sequence.

        Raises:
            ValueError: no `seq_lens`, a longer sequence, columns of different lengths, or another padding already; or
                `exclude_states=False`.
        """
        if not exclude_states:
            raise ValueError("exclude_states=False is not served: states have one row per sequence; leave it out")
        stride, lengths = count("max_seq_len", max_seq_len), self._sequences()
        if lengths is None:
            raise ValueError(f"right_zero_pad() needs 'seq_lens'; this batch has only {sorted(self)}")
        if self.zero_padded and stride != self.max_seq_len:
            raise ValueError(f"padded to {self.max_seq_len} already; pad the batch they are from to {stride}")
        longest = lengths.max(initial=0)
        if longest > stride:
            raise ValueError(f"max_seq_len={stride}, but there is a sequence of {longest} rows; use at least that")
        if not self.zero_padded:
            rows = np.full(len(lengths) * stride, -1)
            rows[valid_places(lengths, stride)] = np.arange(self.count)
            dict.update(self, taken(self, rows, slice(None)))
            self.zero_padded, self.max_seq_len = True, stride
        return self

    def to_tensordict(self, keys: Iterable[str] | None = None) -> TensorDict:
        """These columns, by default all with `dones`, as a TensorDict of batch size `[n]` in the same memory.

        Names are those of Swath's other batches: `obs` is `"observation"`, `rewards` is `("next", "reward")` `[n, 1]`.
        Read-only arrays are copied. `seq_lens` and states of sequences are non-tensor entries; padding counts as rows.

        Raises:
            KeyError: no such column.
            ValueError: columns of different lengths.
        """
        lengths, dones = self._sequences(), [self.DONES] if {self.TERMINATEDS, self.TRUNCATEDS} & self.keys() else []
        columns = {name: self[name] for name in ([*self, *dones] if keys is None else keys)}
        if lengths is None:
            return to_tensordict(columns, self.count, ())
        return to_tensordict(columns, int(self._bounds(lengths)[-1]), [*filter(counts_sequences, self)])

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
        return not as_array(self.unpadded()[self.DONES])[:-1].any()

    def is_terminated_or_truncated(self) -> bool:
        """Whether the last row is done."""
        return bool(as_array(self.unpadded()[self.DONES])[-1:].any())

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
            ValueError: a view of another step.
        """
        row = self.count if index == "last" else range(self.count)[int(index)]
        made = self.like(input_at(self._row_by_row(), row, view_requirements))
        made[self.SEQ_LENS], made.zero_padded = [1], False
        return made

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """This batch as that of one policy, by default the default one, with the same env steps."""
        return MultiAgentBatch({module_id or DEFAULT_POLICY_ID: self}, self.env_steps())

    def unpadded(self) -> Self:
        """The rows without padding: this batch, if there is none."""
        lengths = self._sequences()
        if lengths is None or not self.zero_padded:
            return self
        made = taken(self, np.flatnonzero(valid_places(lengths, self.max_seq_len or 0)), slice(None))
        made.zero_padded = False
        return made

    def __repr__(self) -> str:
        lengths = self._lengths()
        grouped = "" if lengths is None else f" in {len(lengths)} sequences"
        return f"SampleBatch({self.count} rows{grouped}: {', '.join(self)})"

    def _sequences(self) -> Array | None:
        """Rows of each sequence, None where there are none; raises `ValueError` if the batch has no plain rows."""
        self.check_lengths()
        if self.time_major and self.SEQ_LENS in self:
            raise ValueError("columns of this batch are [T, B, …] (time_major); make them [B·T, …] to take rows of it")
        return self._lengths()

    def _row_by_row(self) -> Self:
        """The rows without padding, with lengths and states for every row instead of every sequence."""
        return self.take(np.arange(self.count)) if self._sequences() is not None else self


def _row(i: int, leaf: Leaf) -> Leaf:
    return leaf if rows_of(leaf) is None else leaf[i]


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

        Rows are copies, in the order of episode, time and agent. A policy is in the parts that it has rows in.

        Raises:
            KeyError: a policy's batch lacks `eps_id`, `t` or `agent_index`.
            ValueError: k below 1, or columns of different lengths.
        """
        k, filled = count("k", k), {pid: batch.unpadded() for pid, batch in self.policy_batches.items() if batch.count}
        if not filled:
            return []
        steps, policies, rows = by_step(list(filled.values()))
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


def _as_batch(policy_id: str, batch: Any) -> SampleBatch:
    if not isinstance(batch, Mapping):
        raise TypeError(f"policy {policy_id!r} has {type(batch).__name__}; give a SampleBatch or a dict of columns")
    return batch if isinstance(batch, SampleBatch) else SampleBatch(batch)
