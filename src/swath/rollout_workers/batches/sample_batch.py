"""Transitions of one policy, as columns."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.rollout_workers.batches import concat, rows, sequences, slices, views
from swath.rollout_workers.batches.columns import Columns, like
from swath.rollout_workers.batches.device import to_device
from swath.rollout_workers.batches.leaves import Leaf, leaves
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID, ColumnNames
from swath.rollout_workers.batches.tensordicts import columns_of, to_tensordict
from swath.rollout_workers.batches.views import ViewRequirement
from swath.rollout_workers.nests import map_nest

if TYPE_CHECKING:
    from swath.rollout_workers.batches.multi_agent import MultiAgentBatch

Slice: TypeAlias = slice
"""The builtin, which the method of that name hides."""


class SampleBatch(ColumnNames, Columns):
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

    def check_lengths(self) -> None:
        """Raise `ValueError`, with names and lengths, unless all columns are equally long."""
        sequences.check_lengths(self)

    @overload
    def __getitem__(self, name: Slice) -> Self: ...
    @overload
    def __getitem__(self, name: str) -> Any: ...
    def __getitem__(self, name: str | Slice) -> Any:
        return slices.part(self, name) if isinstance(name, slice) else super().__getitem__(name)

    def columns(self, keys: Iterable[str]) -> list[Any]:
        """These columns."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict; `seq_lens` is 1 in each."""
        return rows.rows(self)

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> Self:
        """Exactly the rows from `start` to `end`; a negative start asks for zeros in front.

        Args:
            start: the first row.
            end: the row behind the last.
            state_start: the first sequence that the rows are from, if the caller knows.
            state_end: the sequence behind the last.

        Raises:
            ValueError: one of the last two alone or not as it is, columns of different lengths, or padded sequences.
        """
        if (state_start is None) != (state_end is None):
            raise ValueError(f"state_start={state_start} and state_end={state_end} are given both or not at all")
        states = None if state_start is None or state_end is None else (state_start, state_end)
        return slices.exact(self, start, end, states)

    def timeslices(self, size: int | None = None, num_slices: int | None = None, k: int | None = None) -> list[Self]:
        """Parts of `size` (or `k`) rows, the last may be shorter; or `num_slices` parts, as equal as can be.

        With `seq_lens` cuts move down to where a sequence starts, and parts that get empty by that are left out.

        Raises:
            ValueError: not exactly one of the three, or one below 1.
        """
        given = [value for value in (size, num_slices, k) if value is not None]
        if len(given) != 1:
            raise ValueError(f"timeslices takes one of size={size}, num_slices={num_slices}, k={k}")
        return slices.by_size(self, given[0]) if num_slices is None else slices.by_number(self, num_slices)

    def split_by_episode(self, key: str | None = None) -> list[Self]:
        """One batch per run of equal `eps_id`, or where that is missing per done; `key` forces "eps_id" or "dones".

        Raises:
            KeyError: no such column.
        """
        return slices.by_episode(self, key)

    def concat(self, other: SampleBatch) -> Self:
        """A new batch of both, as `concat_samples` makes it."""
        return concat.concat([self, other], type(self))

    def copy(self, shallow: bool = False) -> Self:
        """A batch with arrays of its own; shallow, with the same arrays.

        Objects in `infos` and the like are the same in both.
        """
        made = like(self, {name: map_nest(_same if shallow else _copied, column) for name, column in self.items()})
        made.set_env_steps(self._env_steps)
        return made

    def shuffle(self, generator: np.random.Generator | None = None) -> Self:
        """Put the rows in random order, all columns and `infos` alike, in place; padded sequences stay together.

        Args:
            generator: what draws the order; by default NumPy's global state.

        Returns:
            This batch.

        Raises:
            ValueError: columns of different lengths, or sequences without padding.
        """
        rows.shuffle(self, generator)
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> Self:
        """Let each sequence take `max_seq_len` rows, zeros behind its end, in place.

        Args:
            max_seq_len: at least the length of the longest.
            exclude_states: only True: `state_in_…` have one row per sequence.

        Returns:
            This batch.

        Raises:
            ValueError: no `seq_lens`, a longer sequence, columns of different lengths, or another padding already; or
                `exclude_states=False`.
        """
        if not exclude_states:
            raise ValueError("exclude_states=False is not served: states have one row per sequence; leave it out")
        rows.right_zero_pad(self, max_seq_len)
        return self

    def to_device(
        self,
        device: Any,
        framework: str = "torch",
        pin_memory: bool = False,
        use_stream: bool = False,
        stream: Any = None,
    ) -> Self:
        """Make the columns tensors on a device, in place; float64 becomes float32, `infos` and objects stay.

        On the CPU tensors share memory with the arrays that they are made of.

        Args:
            device: where to.
            framework: only "torch".
            pin_memory: copy through page-locked memory (CUDA).
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
        to_device(self, device, pin_memory=pin_memory)
        return self

    def to_tensordict(self, keys: Iterable[str] | None = None) -> TensorDict:
        """These columns, by default all with `dones`, as a TensorDict of batch size `[n]` in the same memory.

        Names are those of Swath's other batches: `obs` is `"observation"`, `rewards` is `("next", "reward")` `[n, 1]`.
        Read-only arrays are copied. `seq_lens` and states of sequences are non-tensor entries.

        Raises:
            KeyError: no such column.
            ValueError: columns of different lengths.
        """
        return to_tensordict(self, keys)

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
        return not slices.valid_dones(self)[:-1].any()

    def is_terminated_or_truncated(self) -> bool:
        """Whether the last row is done."""
        return bool(slices.valid_dones(self)[-1:].any())

    def get_single_step_input_dict(
        self, view_requirements: dict[str, ViewRequirement] | None = None, index: str | int = "last"
    ) -> Self:
        """One row of this trajectory as input for a policy.

        Args:
            view_requirements: columns of the input; None for the observation and, where known, the action and the
                reward before it and the state.
            index: which row. "last" stands for the step behind the last row, made of its `new_obs`, action, reward,
                state.

        Raises:
            IndexError: no such row.
            KeyError: a column that the batch cannot give.
            ValueError: another shift than 0 and -1.
        """
        return views.single_step(self, view_requirements, index)

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """This batch as that of one policy, by default the default one, with the same env steps."""
        from swath.rollout_workers.batches.multi_agent import MultiAgentBatch  # noqa: PLC0415  it is made of this class

        return MultiAgentBatch({module_id or DEFAULT_POLICY_ID: self}, self.env_steps())

    def size_bytes(self) -> int:
        """Bytes of all leaves."""
        return sum(_bytes(leaf) for column in self.values() for _, leaf in leaves(column))

    def __repr__(self) -> str:
        seq_lens = dict.get(self, ColumnNames.SEQ_LENS)
        grouped = "" if seq_lens is None else f" in {len(seq_lens)} sequences"
        return f"SampleBatch({self.count} rows{grouped}: {', '.join(self)})"


def _same(leaf: Leaf) -> Leaf:
    return leaf


def _copied(leaf: Leaf) -> Leaf:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return leaf.copy() if isinstance(leaf, np.ndarray | list) else leaf


def _bytes(leaf: Leaf) -> int:
    if isinstance(leaf, np.ndarray | torch.Tensor):
        return int(leaf.nbytes) + sum(sys.getsizeof(row) for row in _objects_in(leaf))
    return sys.getsizeof(leaf)


def _objects_in(leaf: np.ndarray[Any, Any] | torch.Tensor) -> list[Any]:
    """What an array only points to."""
    return leaf.ravel().tolist() if isinstance(leaf, np.ndarray) and leaf.dtype == object else []
