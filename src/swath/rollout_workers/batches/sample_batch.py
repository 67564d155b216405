"""What workers hand out: transitions of one policy, as columns.

seq_lens 2 3 1     rows  a a b b b c            not padded: one sequence behind the other
                   rows  a a . b b b c . .      padded to 3: each takes as many places
none               rows  a b c d e f            nothing is known of sequences
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from numbers import Number
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.options import count
from swath.rollout_workers.batches import rows as of_rows
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID, ColumnNames, ViewRequirement, counts_sequences
from swath.rollout_workers.batches.rows import Refusing, Slice, attempt_count_timesteps
from swath.rollout_workers.batches.tensordicts import columns_of, to_tensordict
from swath.rollout_workers.nests import ARRAYS, Array, as_array, leaves, map_nest

if TYPE_CHECKING:
    from swath.rollout_workers.batches.multi_agent_batch import MultiAgentBatch


class SampleBatch(Refusing, ColumnNames, dict[str, Any]):
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

    Attributes:
        time_major: columns are `[T, B, …]`.
        max_seq_len: no sequence is longer.
        zero_padded: each sequence takes `max_seq_len` rows, with zeros behind its end.
        num_grad_updates: of the policy that acted; a mean, if there were several.
        is_training: the batch is for an update, not for choosing actions.
        own_env_steps: env steps that the rows are from, where several agents shared an env; else None. Copies keep the
            number, `concat` adds it up, parts of the batch do not have it.
    """

    own_env_steps: int | None = None

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

    @property
    def count(self) -> int:
        """Rows: the sum of `seq_lens`, else the rows of the first column that can be counted, else 0."""
        return attempt_count_timesteps(self)

    def __len__(self) -> int:
        return self.count

    def agent_steps(self) -> int:
        """Rows."""
        return self.count

    def env_steps(self) -> int:
        """Env steps that the rows are from; as many as there are rows, unless several agents shared an env."""
        return self.count if self.own_env_steps is None else self.own_env_steps

    @overload
    def __getitem__(self, name: Slice) -> Self: ...
    @overload
    def __getitem__(self, name: str) -> Any: ...
    def __getitem__(self, name: str | Slice) -> Any:
        if not isinstance(name, slice):
            return of_rows.dones_of(self) if name == self.DONES else super().__getitem__(name)
        if name.step not in (None, 1):
            raise ValueError(f"step {name.step} of a slice of a batch must be 1; take every n-th row of the columns")
        lengths = self.sequences()
        start, stop, _ = name.indices(self.count)
        if lengths is None:
            return of_rows.taken(self, slice(start, max(start, stop)))
        first, last = np.searchsorted(np.cumsum(lengths), (start, max(start, stop)), side="right")
        places = np.append(0, np.cumsum(self.places(lengths)))
        return of_rows.taken(self, slice(places[first], places[last]), slice(first, last))

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
        """A column, or the default if there is none."""
        try:
            return self[name]
        except KeyError:
            return default

    def update(self, *args: Any, **columns: Any) -> None:
        """Set several columns."""
        for name, column in dict(*args, **columns).items():
            self[name] = column

    def columns(self, keys: Iterable[str]) -> list[Any]:
        """These columns."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict; `seq_lens` is 1 in each."""
        columns = self.row_by_row()
        for i in range(self.count):
            yield columns.mapped(partial(of_rows.row, i))

    def set_training(self, training: bool = True) -> None:
        """Say whether the batch is for an update."""
        self.is_training = training

    def copy(self, shallow: bool = False) -> Self:
        """A batch with arrays of its own; shallow, with the same arrays.

        Objects in `infos` and the like are the same in both.
        """
        made = self.like(dict(self) if shallow else self.mapped(of_rows.copied))
        made.own_env_steps = self.own_env_steps
        return made

    def take(self, rows: Array) -> Self:
        """The rows of these numbers `[n]`, copied: sequences of one row each, where there are sequences."""
        if self.sequences() is None:
            return of_rows.taken(self, rows)
        return of_rows.regrouped(self.unpadded(), rows, np.ones_like(rows))

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> Self:
        """Exactly the rows from `start` to before `end`; a negative start asks for zeros in front.

        `state_start` and `state_end` bound the sequences that the rows are from, if the caller knows.

        Raises:
            ValueError: the last two are not as it is, columns of different lengths, or padded sequences.
        """
        return of_rows.sliced(self, start, end, state_start, state_end)

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
        if key not in (None, self.EPS_ID, self.DONES):
            raise ValueError(f"split_by_episode(key={key!r}) splits by one of 'eps_id' and 'dones'")
        key = key or (self.EPS_ID if self.EPS_ID in self else self.DONES)
        values = as_array(self[key])
        ends = values[1:] != values[:-1] if key == self.EPS_ID else values[:-1]
        bounds = [0, *(np.flatnonzero(ends) + 1).tolist(), self.count] if self.count else []
        return [self.slice(start, stop) for start, stop in pairwise(bounds)]

    def concat(self, other: SampleBatch) -> SampleBatch:
        """A new batch of both, as `concat_samples` makes it."""
        from swath.rollout_workers.batches.multi_agent_batch import concat  # noqa: PLC0415  it is made of these

        return concat([self, other])

    def shuffle(self, generator: np.random.Generator | None = None) -> Self:
        """Put the rows in random order, all columns and `infos` alike, in place; padded sequences stay together.

        Returns this batch; the generator is by default NumPy's global state.

        Raises:
            ValueError: columns of different lengths, or sequences without padding.
        """
        lengths = self.sequences()
        if lengths is not None and not self.zero_padded:
            raise ValueError("rows of sequences cannot be shuffled; after right_zero_pad() whole sequences can")
        draw: Any = np.random.permutation if generator is None else generator.permutation
        order = draw(self.count if lengths is None else len(lengths))
        stride = 1 if lengths is None else self.max_seq_len or 0
        dict.update(self, of_rows.taken(self, (order[:, None] * stride + np.arange(stride)).ravel(), order))
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> Self:
        """Let each sequence take `max_seq_len` rows, zeros behind its end, in place; None among objects.

        Returns this batch. `exclude_states` is always True: `state_in_…` have one row per sequence.

        Raises:
            ValueError: no `seq_lens`, a longer sequence, columns of different lengths, or another padding already; or
                `exclude_states=False`.
        """
        return of_rows.padded(self, max_seq_len, exclude_states=exclude_states)

    def unpadded(self) -> Self:
        """The rows without padding: this batch, if there is none."""
        lengths = self.sequences()
        if lengths is None or not self.zero_padded:
            return self
        made = of_rows.taken(self, np.flatnonzero(of_rows.valid_places(lengths, self.max_seq_len or 0)))
        made.zero_padded = False
        return made

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
        dict.update(self, self.mapped(partial(of_rows.moved, device=target, pin=pin_memory and target.type == "cuda")))
        return self

    def to_tensordict(self, keys: Iterable[str] | None = None) -> TensorDict:
        """These columns, by default all with `dones`, as a TensorDict of batch size `[n]` in the same memory.

        Names are those of Swath's other batches: `obs` is `"observation"`, `rewards` is `("next", "reward")` `[n, 1]`.
        Read-only arrays are copied. `seq_lens` and states of sequences are non-tensor entries; padding counts as rows.

        Raises:
            KeyError: no such column.
            ValueError: columns of different lengths.
        """
        lengths, dones = self.sequences(), [self.DONES] if {self.TERMINATEDS, self.TRUNCATEDS} & self.keys() else []
        columns = {name: self[name] for name in ([*self, *dones] if keys is None else keys)}
        if lengths is None:
            return to_tensordict(columns, self.count, ())
        return to_tensordict(columns, int(self.places(lengths).sum()), [*filter(counts_sequences, self)])

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
        self, view_requirements: Mapping[str, ViewRequirement] | None = None, index: str | int = "last"
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
        return of_rows.step_input(self, view_requirements, index)

    def check_lengths(self) -> None:
        """Raise `ValueError`, with names and lengths, unless all columns with a leading dimension are equally long.

        With `seq_lens` that is the sum of its numbers, or the places of padded sequences; `state_in_…` then have one
        row per sequence.
        """
        of_rows.require_equal_lengths(self)

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """This batch as that of one policy, by default the default one, with the same env steps."""
        from swath.rollout_workers.batches.multi_agent_batch import MultiAgentBatch  # noqa: PLC0415  it is made of these

        return MultiAgentBatch({module_id or DEFAULT_POLICY_ID: self}, self.env_steps())

    def size_bytes(self) -> int:
        """Bytes of all leaves."""
        found = (leaf for _, leaf in leaves(dict(self)))
        return sum(leaf.nbytes if isinstance(leaf, ARRAYS) else sys.getsizeof(leaf) for leaf in found)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Columns and attributes. NumPy gives only arrays without gaps out of band: the others are packed first."""
        return type(self), (self.mapped(of_rows.without_gaps),), vars(self).copy()

    def __repr__(self) -> str:
        lengths = self.lengths()
        grouped = "" if lengths is None else f" in {len(lengths)} sequences"
        return f"SampleBatch({self.count} rows{grouped}: {', '.join(self)})"

    def like(self, columns: dict[str, Any]) -> Self:
        """Other columns, of which the same holds as of these; but for `own_env_steps`."""
        made = type(self)()
        dict.update(made, columns)
        vars(made).update(vars(self), own_env_steps=None)
        return made

    def mapped(self, function: Callable[[Any], Any]) -> dict[str, Any]:
        """The columns with `function(leaf)` in place of each leaf."""
        return {name: map_nest(function, column) for name, column in self.items()}

    def lengths(self) -> Array | None:
        """Rows of each sequence, None where there are none."""
        seq_lens = dict.get(self, self.SEQ_LENS)
        return None if seq_lens is None else as_array(seq_lens).astype(np.int64).reshape(-1)

    def sequences(self) -> Array | None:
        """Rows of each sequence, None where there are none; raises `ValueError` if the batch has no plain rows."""
        self.check_lengths()
        if self.time_major and self.SEQ_LENS in self:
            raise ValueError("columns of this batch are [T, B, …] (time_major); make them [B·T, …] to take rows of it")
        return self.lengths()

    def places(self, lengths: Array) -> Array:
        """How many places in a column each sequence takes, with padding."""
        return np.full_like(lengths, self.max_seq_len) if self.zero_padded else lengths

    def row_by_row(self) -> Self:
        """The rows without padding, with lengths and states for every row instead of every sequence."""
        return self if self.sequences() is None else self.take(np.arange(self.count))
