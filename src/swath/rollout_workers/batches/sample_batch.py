"""Transitions of one policy, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

import numpy as np
from tensordict import TensorDict, TensorDictBase

from swath.options import count
from swath.rollout_workers.batches.columns import Columns
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
from swath.rollout_workers.batches.rows import (
    Sequences,
    check_lengths,
    check_rows,
    concat,
    regrouped,
    sequences_of,
    taken,
)
from swath.rollout_workers.batches.tensordicts import columns_of, to_tensordict
from swath.rollout_workers.nests import Array, Leaf, as_array, map_nest, rows_of, take

if TYPE_CHECKING:
    from swath.rollout_workers.batches.multi_agent import MultiAgentBatch

Slice: TypeAlias = slice
"""The builtin, which the method of that name hides."""

_EPISODE_KEYS = (ColumnNames.EPS_ID, ColumnNames.DONES)

_BEHIND = {ColumnNames.OBS: ColumnNames.NEXT_OBS, **SHIFTED}
"""Where the last row holds what these columns hold in the step behind it."""


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
        check_lengths(self)

    @overload
    def __getitem__(self, name: Slice) -> Self: ...
    @overload
    def __getitem__(self, name: str) -> Any: ...
    def __getitem__(self, name: str | Slice) -> Any:
        if not isinstance(name, slice):
            return super().__getitem__(name)
        if name.step not in (None, 1):
            raise ValueError(
                f"step {name.step} of a slice of a batch must be 1; take every n-th row of the columns instead"
            )
        check_rows(self)
        start, stop, _ = name.indices(self.count)
        stop = max(start, stop)
        if ColumnNames.SEQ_LENS not in self:
            return self.like(self.mapped(partial(take, rows=slice(start, stop))))
        sequences = Sequences.of(self)
        first, last = sequences.before(start), sequences.before(stop)
        return taken(self, slice(*sequences.bounds[[first, last]]), slice(first, last))

    def columns(self, keys: Iterable[str]) -> list[Any]:
        """These columns."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict; `seq_lens` is 1 in each."""
        columns = self._row_by_row()
        for i in range(self.count):
            yield columns.mapped(partial(_row, i))

    def take(self, rows: Array) -> Self:
        """These rows, copied: sequences of one row each, where there are sequences.

        The state before a row is that at the beginning of its sequence, or what the row before gave out
        (`state_out_…`), if the batch has that.

        Args:
            rows: their numbers `[n]`.
        """
        check_rows(self)
        if ColumnNames.SEQ_LENS not in self:
            return taken(self, rows, rows)
        made = regrouped(self, rows, np.ones(len(rows), dtype=np.int64))
        made.zero_padded = False
        return made

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> Self:
        """Exactly the rows from `start` to `end`; a negative start asks for zeros in front.

        Args:
            start: the first row.
            end: the row behind the last.
            state_start: the first sequence that the rows are from, if the caller knows.
            state_end: the sequence behind the last.

        Raises:
            ValueError: the last two are not as it is, columns of different lengths, or padded sequences.
        """
        check_rows(self)
        front = max(-count("start", start, least=None), 0)
        begin = min(max(start, 0), self.count)
        stop = max(begin, min(count("end", end, least=0), self.count))
        rows: Any = np.concatenate([np.full(front, -1), np.arange(begin, stop)]) if front else slice(begin, stop)
        if ColumnNames.SEQ_LENS not in self:
            return taken(self, rows, rows)
        sequences = Sequences.of(self)
        if sequences.stride is not None:
            raise ValueError(
                "of padded sequences only whole ones can be taken; use batch[i:j], or slice before padding"
            )
        found, lengths = np.unique(sequences.of_rows[begin:stop], return_counts=True)
        if front:  # zeros in front belong to the first
            found, lengths = (found, lengths) if len(found) else (np.zeros(1, int), np.zeros(1, int))
            lengths[0] += front
        span = (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)
        if (state_start, state_end) not in ((None, None), span):
            given = (state_start, state_end)
            raise ValueError(f"rows {start} to {end} are from sequences {span[0]} to {span[1]}, not {given}")
        return regrouped(self, rows if front else np.arange(begin, stop), lengths)

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
            bounds = [0, *np.cumsum([(self.count + i) // wanted for i in range(wanted)]).tolist()]
        parts = [self[start:stop] for start, stop in pairwise(bounds)]
        return parts if ColumnNames.SEQ_LENS not in self else [part for part in parts if part.count]

    def split_by_episode(self, key: str | None = None) -> list[Self]:
        """One batch per run of equal `eps_id`, or where that is missing per done; `key` forces "eps_id" or "dones".

        Raises:
            KeyError: no such column.
            ValueError: another key, or an episode that ends in the middle of a padded sequence.
        """
        if key not in (None, *_EPISODE_KEYS):
            raise ValueError(f"split_by_episode(key={key!r}) splits by one of {_EPISODE_KEYS}")
        key = key or (ColumnNames.EPS_ID if ColumnNames.EPS_ID in self else ColumnNames.DONES)
        sequences = sequences_of(self)
        values = as_array(self[key])[sequences.place_of_rows]
        ends = values[1:] != values[:-1] if key == ColumnNames.EPS_ID else values[:-1]
        bounds = [0, *(np.flatnonzero(ends) + 1).tolist(), self.count] if self.count else []
        if sequences.stride is None:
            return [self.slice(start, stop) for start, stop in pairwise(bounds)]
        if not set(bounds) <= {*sequences.starts.tolist(), self.count}:
            raise ValueError("a padded sequence goes on over the end of an episode; split by episode before padding")
        return [self[start:stop] for start, stop in pairwise(bounds)]

    def concat(self, other: SampleBatch) -> Self:
        """A new batch of both, as `concat_samples` makes it."""
        return concat([self, other], type(self))

    def shuffle(self, generator: np.random.Generator | None = None) -> Self:
        """Put the rows in random order, all columns and `infos` alike, in place; padded sequences stay together.

        Args:
            generator: what draws the order; by default NumPy's global state.

        Returns:
            This batch.

        Raises:
            ValueError: columns of different lengths, or sequences without padding.
        """
        sequences = sequences_of(self)
        if sequences.stride is None:
            raise ValueError("rows of sequences cannot be shuffled; after right_zero_pad() whole sequences can")
        draw: Any = np.random.permutation if generator is None else generator.permutation
        order = draw(len(sequences))
        places = (order[:, None] * sequences.stride + np.arange(sequences.stride)).reshape(-1)
        dict.update(self, taken(self, places, order))
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> Self:
        """Let each sequence take `max_seq_len` rows, zeros behind its end, in place; None among objects.

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
        stride = count("max_seq_len", max_seq_len)
        if ColumnNames.SEQ_LENS not in self:
            raise ValueError(f"right_zero_pad() needs 'seq_lens'; this batch has only {sorted(self)}")
        sequences = sequences_of(self)
        if sequences.stride not in (None, stride):
            raise ValueError(
                f"the sequences are padded to {sequences.stride} already; pad the batch they are from to {stride}"
            )
        longest = sequences.lengths.max(initial=0)
        if longest > stride:
            raise ValueError(f"max_seq_len={stride}, but there is a sequence of {longest} rows; use at least that")
        padded = Sequences(sequences.lengths, stride)
        rows = np.full(padded.bounds[-1], -1)
        rows[padded.place_of_rows] = sequences.place_of_rows
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
        flags = {ColumnNames.TERMINATEDS, ColumnNames.TRUNCATEDS} & self.keys()
        names = [*self, *([ColumnNames.DONES] if flags else [])] if keys is None else keys
        whole = filter(counts_sequences, self) if ColumnNames.SEQ_LENS in self else ()
        return to_tensordict({name: self[name] for name in names}, int(sequences_of(self).bounds[-1]), set(whole))

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
        from swath.rollout_workers.batches.multi_agent import MultiAgentBatch  # noqa: PLC0415  it is made of this class

        return MultiAgentBatch({module_id or DEFAULT_POLICY_ID: self}, self.env_steps())

    def __repr__(self) -> str:
        seq_lens = dict.get(self, ColumnNames.SEQ_LENS)
        grouped = "" if seq_lens is None else f" in {len(seq_lens)} sequences"
        return f"SampleBatch({self.count} rows{grouped}: {', '.join(self)})"

    def _row_by_row(self) -> Self:
        """The rows without padding, with lengths and states for every row instead of every sequence."""
        sequences_of(self)
        return self.take(np.arange(self.count)) if ColumnNames.SEQ_LENS in self else self

    def _valid_dones(self) -> Array:
        """The `dones` of the rows, without padding."""
        flags: Array = as_array(self[ColumnNames.DONES])[Sequences.of(self).place_of_rows]
        return flags


def _row(i: int, leaf: Leaf) -> Leaf:
    return leaf if rows_of(leaf) is None else leaf[i]


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
