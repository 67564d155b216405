"""What workers hand out: transitions of one policy, as columns, and those of several that acted in the same envs.

seq_lens 2 3 1     rows  a a b b b c            not padded: one sequence behind the other
                   rows  a a . b b b c . .      padded to 3: each takes as many places
none               rows  a b c d e f            nothing is known of sequences
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import partial
from itertools import pairwise
from numbers import Number
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, overload

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.options import count
from swath.rollout_workers import nests
from swath.rollout_workers.batches import names
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID, ColumnNames, ViewRequirement, counts_sequences
from swath.rollout_workers.batches.tensordicts import columns_of, to_tensordict
from swath.rollout_workers.nests import ARRAYS, Array, Leaf, as_array, leaves, map_nest, rows_of, take

# The builtin, which the method of that name hides.
Slice: TypeAlias = slice
Batch = TypeVar("Batch", bound="SampleBatch")

# Where the last row holds what these columns hold in the step behind it.
_BEHIND = {ColumnNames.OBS: ColumnNames.NEXT_OBS, **names.SHIFTED}

# What RLlib's batches have and these do not.
_GONE = "compress decompress_if_needed pack_if_needed set_get_interceptor accessed_keys added_keys deleted_keys"
_INSTEAD = ": columns are plain arrays; keep them with numpy.savez_compressed, make them tensors with to_device()"


def attempt_count_timesteps(tensor_dict: dict[str, Any]) -> int:
    """The sum of `seq_lens`, else the rows of the first column that can be counted, else 0.

    Columns named `infos`, `state_in_…` and `state_out_…` are not counted. Of a nested column the first leaf is.
    """
    seq_lens = dict.get(tensor_dict, ColumnNames.SEQ_LENS)
    if seq_lens is not None and len(seq_lens):
        return int(as_array(seq_lens).sum())
    uncounted = ColumnNames.INFOS, ColumnNames.SEQ_LENS, names.STATE_IN, names.STATE_OUT
    for name, column in tensor_dict.items():
        rows = None if name.startswith(uncounted) else rows_of(next((leaf for _, leaf in leaves(column)), None))
        if rows:
            return rows
    return 0


class _Refusing:
    """Says what to do in place of what RLlib's batches have and these do not."""

    if not TYPE_CHECKING:  # a type checker must see which attributes there are not

        def __getattr__(self, name: str) -> Any:
            instead = _INSTEAD if name in _GONE.split() else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{instead}", name=name, obj=self)


class SampleBatch(_Refusing, ColumnNames, dict[str, Any]):
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
            return self._dones() if name == self.DONES else super().__getitem__(name)
        if name.step not in (None, 1):
            raise ValueError(f"step {name.step} of a slice of a batch must be 1; take every n-th row of the columns")
        lengths = self._sequences()
        start, stop, _ = name.indices(self.count)
        if lengths is None:
            return _taken(self, slice(start, max(start, stop)))
        first, last = np.searchsorted(np.cumsum(lengths), (start, max(start, stop)), side="right")
        places = np.append(0, np.cumsum(self._places(lengths)))
        return _taken(self, slice(places[first], places[last]), slice(first, last))

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
        columns = self._row_by_row()
        for i in range(self.count):
            yield columns.mapped(partial(_row, i))

    def set_training(self, training: bool = True) -> None:
        """Say whether the batch is for an update."""
        self.is_training = training

    def copy(self, shallow: bool = False) -> Self:
        """A batch with arrays of its own; shallow, with the same arrays.

        Objects in `infos` and the like are the same in both.
        """
        made = self.like(dict(self) if shallow else self.mapped(_copied))
        made.own_env_steps = self.own_env_steps
        return made

    def take(self, rows: Array) -> Self:
        """The rows of these numbers `[n]`, copied: sequences of one row each, where there are sequences."""
        if self._sequences() is None:
            return _taken(self, rows)
        return _regrouped(self.unpadded(), rows, np.ones_like(rows))

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
        if lengths is None and not front:
            return _taken(self, slice(begin, stop))
        rows = np.append(np.full(front, -1), np.arange(begin, stop))
        if lengths is None:
            return _taken(self, rows)
        if self.zero_padded:
            raise ValueError("of padded sequences only whole ones can be taken; use batch[i:j], or cut before padding")
        of = np.repeat(np.arange(len(lengths)), lengths)[begin:stop]
        of = np.append(np.full(front, of[0] if len(of) else 0), of)  # zeros in front belong to the first sequence
        bounds = (int(of[0]), int(of[-1]) + 1) if len(of) else (0, 0)
        if (state_start, state_end) not in ((None, None), bounds):
            given = (state_start, state_end)
            raise ValueError(f"rows {start} to {end} are from sequences {bounds[0]} to {bounds[1]}, not {given}")
        return _regrouped(self, rows, np.unique(of, return_counts=True)[1])

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
        return concat([self, other])

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
        dict.update(self, _taken(self, (order[:, None] * stride + np.arange(stride)).ravel(), order))
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
            rows[_valid_places(lengths, stride)] = np.arange(self.count)
            dict.update(self, _taken(self, rows))
            self.zero_padded, self.max_seq_len = True, stride
        return self

    def unpadded(self) -> Self:
        """The rows without padding: this batch, if there is none."""
        lengths = self._sequences()
        if lengths is None or not self.zero_padded:
            return self
        made = _taken(self, np.flatnonzero(_valid_places(lengths, self.max_seq_len or 0)))
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
        dict.update(self, self.mapped(partial(_moved, device=target, pin=pin_memory and target.type == "cuda")))
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
        return to_tensordict(columns, int(self._places(lengths).sum()), [*filter(counts_sequences, self)])

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
        columns, is_behind = self._row_by_row(), index == "last"
        row = range(self.count)[-1 if is_behind else int(index)]
        if view_requirements is None:
            before = (name for name, source in names.SHIFTED.items() if source in self)
            view_requirements = dict.fromkeys((self.OBS, *before, *filter(names.is_state_in, self)), ViewRequirement())
        made: dict[str, Any] = {}
        for name, view in view_requirements.items():
            view.require_own_step(name)
            source, at = name, row
            if is_behind:
                source = names.state_out_of(name) if names.is_state_in(name) else _BEHIND.get(name, name)
            elif name not in self and name in names.SHIFTED:
                source, at = names.SHIFTED[name], row - 1
            if view.used_for_compute_actions:
                made[name] = map_nest(partial(take, rows=np.array([at])), columns[source])
        batch = self.like(made)
        batch[self.SEQ_LENS], batch.zero_padded = [1], False
        return batch

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """This batch as that of one policy, by default the default one, with the same env steps."""
        return MultiAgentBatch({module_id or DEFAULT_POLICY_ID: self}, self.env_steps())

    def size_bytes(self) -> int:
        """Bytes of all leaves."""
        found = (leaf for _, leaf in leaves(dict(self)))
        return sum(leaf.nbytes if isinstance(leaf, ARRAYS) else sys.getsizeof(leaf) for leaf in found)

    def check_lengths(self) -> None:
        """Raise `ValueError`, with names and lengths, unless all columns with a leading dimension are equally long.

        With `seq_lens` that is the sum of its numbers, or the places of padded sequences; `state_in_…` then have one
        row per sequence.
        """
        lengths = self._lengths()
        if lengths is None:
            shapes = {column.shape[:1] if isinstance(column, np.ndarray) else None for column in self.values()}
            if len(shapes) == 1 and not shapes & {None, ()}:
                return  # as in most batches
        of_rows, of_states, found = set[int](), set[int](), list[str]()
        if lengths is not None:
            of_states.add(len(lengths))
            of_rows.update(() if self.time_major else (int(self._places(lengths).sum()),))
        for path, leaf in leaves({name: column for name, column in self.items() if name != self.SEQ_LENS}):
            n_rows = rows_of(leaf)
            if n_rows is not None:
                (of_rows if lengths is None or not names.is_state_in(path[0]) else of_states).add(n_rows)
                found.append(f"{'/'.join(map(str, path))}: {n_rows}")
        if max(len(of_rows), len(of_states)) > 1:
            wanted = "one row per step" if lengths is None else f"as many rows as its {len(lengths)} sequences have"
            raise ValueError(f"columns of different lengths: {', '.join(found)}; every column needs {wanted}")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Columns and attributes. NumPy gives only arrays without gaps out of band: the others are packed first."""
        return type(self), (self.mapped(_without_gaps),), vars(self).copy()

    def __repr__(self) -> str:
        lengths = self._lengths()
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

    def _lengths(self) -> Array | None:
        """Rows of each sequence, None where there are none."""
        seq_lens = dict.get(self, self.SEQ_LENS)
        return None if seq_lens is None else as_array(seq_lens).astype(np.int64).reshape(-1)

    def _sequences(self) -> Array | None:
        """Rows of each sequence, None where there are none; raises `ValueError` if the batch has no plain rows."""
        self.check_lengths()
        if self.time_major and self.SEQ_LENS in self:
            raise ValueError("columns of this batch are [T, B, …] (time_major); make them [B·T, …] to take rows of it")
        return self._lengths()

    def _places(self, lengths: Array) -> Array:
        """How many places in a column each sequence takes, with padding."""
        return np.full_like(lengths, self.max_seq_len) if self.zero_padded else lengths

    def _row_by_row(self) -> Self:
        """The rows without padding, with lengths and states for every row instead of every sequence."""
        return self if self._sequences() is None else self.take(np.arange(self.count))

    def _dones(self) -> Any:
        """`terminateds | truncateds`, as they are stored; a fresh array that cannot be written."""
        flags = [self[name] for name in (self.TERMINATEDS, self.TRUNCATEDS) if name in self]
        if not flags:
            raise KeyError(f"'dones': the batch has neither 'terminateds' nor 'truncateds', but {sorted(self)}")
        if all(isinstance(flag, torch.Tensor) for flag in flags):
            return torch.logical_or(flags[0], flags[-1])
        dones = np.asarray(np.logical_or(as_array(flags[0]), as_array(flags[-1])))
        dones.flags.writeable = False
        return dones


def concat(batches: Iterable[SampleBatch]) -> SampleBatch:
    """Batches as a new one; empty ones are passed over.

    Raises:
        ValueError: columns of different lengths, names, structures or shapes, or batches that differ in `zero_padded`,
            `time_major` or `max_seq_len`.
    """
    filled, made = [batch for batch in batches if batch.count], SampleBatch()
    if not filled:
        return made
    first = filled[0]
    for batch in filled:
        batch.check_lengths()
        if missing := first.keys() ^ batch.keys():
            raise ValueError(f"columns {sorted(missing)} are in some batches only; give them to all, or delete them")
        for trait in ("zero_padded", "time_major", "max_seq_len"):
            here, there = getattr(first, trait), getattr(batch, trait)
            may_differ = trait == "max_seq_len" and not first.zero_padded and None not in (here, there)
            if here != there and not may_differ:
                raise ValueError(f"batches differ in {trait}: {here} and {there}; it must be the same in all")
    for name in first:
        axis = 1 if first.time_major and not counts_sequences(name) else 0
        columns = [dict.__getitem__(batch, name) for batch in filled]
        try:
            dict.__setitem__(made, name, map_nest(partial(nests.joined, axis=axis), *columns))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"columns named {name!r} do not fit: {error}") from error
    made.time_major, made.zero_padded = first.time_major, first.zero_padded
    made.max_seq_len = None if first.max_seq_len is None else max(batch.max_seq_len or 0 for batch in filled)
    known = [(batch.num_grad_updates, batch.count) for batch in filled if batch.num_grad_updates is not None]
    if known:
        made.num_grad_updates = sum(updates * rows for updates, rows in known) / sum(rows for _, rows in known)
    made.is_training = all(batch.is_training for batch in filled)
    if any(batch.own_env_steps is not None for batch in filled):
        made.own_env_steps = sum(batch.env_steps() for batch in filled)
    return made


def _taken(batch: Batch, rows: Slice | Array, of_sequences: Slice | Array = slice(None)) -> Batch:
    """These places of columns, and these of columns that have one row per sequence, by default all."""
    pick, pick_sequences = partial(take, rows=rows), partial(take, rows=of_sequences)
    if ColumnNames.SEQ_LENS not in batch:
        return batch.like(batch.mapped(pick))
    return batch.like(
        {name: map_nest(pick_sequences if counts_sequences(name) else pick, batch[name]) for name in batch}
    )


def _regrouped(batch: Batch, rows: Array, lengths: Array) -> Batch:
    """These rows of sequences without padding, copied, as sequences of other lengths; zeros for rows below 0.

    The state before a sequence is that at the beginning of its first row's, or what the row before gave out, if the
    batch has that.
    """
    seq_lens = batch[ColumnNames.SEQ_LENS]
    old = as_array(seq_lens).reshape(-1)
    starts, of_rows = np.cumsum(old) - old, np.repeat(np.arange(len(old)), old)
    firsts = np.maximum(rows[np.cumsum(lengths) - lengths], 0)
    made = _taken(batch, rows, of_rows[firsts])
    inside = np.flatnonzero(firsts > starts[of_rows[firsts]])

    def after(leaf: Leaf, out: Leaf) -> Leaf:
        leaf[inside] = take(out, firsts[inside] - 1)
        return leaf

    for name in filter(names.is_state_in, batch):
        if names.state_out_of(name) in batch:
            made[name] = map_nest(after, made[name], batch[names.state_out_of(name)])
    is_tensor = isinstance(seq_lens, torch.Tensor)
    made[ColumnNames.SEQ_LENS] = torch.from_numpy(lengths).to(seq_lens) if is_tensor else lengths.astype(seq_lens.dtype)
    return made


def _valid_places(lengths: Array, stride: int) -> Array:
    """Which places of sequences that are padded to `stride` hold rows."""
    return (np.arange(stride) < lengths[:, None]).ravel()


def _row(i: int, leaf: Leaf) -> Leaf:
    return leaf if rows_of(leaf) is None else leaf[i]


def _without_gaps(leaf: Leaf) -> Leaf:
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.forc else leaf


def _copied(leaf: Leaf) -> Leaf:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else copy(leaf)


def _moved(leaf: Leaf, device: torch.device, *, pin: bool) -> Leaf:
    """A leaf as a tensor on a device; what no tensor can hold stays as it is."""
    if not isinstance(leaf, ARRAYS) or nests.holds_objects(leaf):
        return leaf
    tensor = nests.tensor_of(leaf)
    tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
    tensor = tensor.pin_memory() if pin and tensor.device.type == "cpu" else tensor
    return tensor.to(device, non_blocking=pin)


class MultiAgentBatch(_Refusing):
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
