"""What workers hand out: transitions of one policy, as columns; and such batches one behind another."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.rollout_workers import nests
from swath.rollout_workers.batches.names import (
    DEFAULT_POLICY_ID,
    SHIFTED,
    ColumnNames,
    ViewRequirement,
    counts_sequences,
    is_state_in,
    state_out_of,
)
from swath.rollout_workers.batches.rows import Rows
from swath.rollout_workers.batches.tensordicts import columns_of, to_tensordict
from swath.rollout_workers.nests import ARRAYS, Leaf, as_array, leaves, map_nest

if TYPE_CHECKING:
    from swath.rollout_workers.batches.multi_agent_batch import MultiAgentBatch

# Where the last row holds what these columns hold in the step behind it.
_BEHIND = {ColumnNames.OBS: ColumnNames.NEXT_OBS, **SHIFTED}


class SampleBatch(Rows):
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
        """Rows."""
        return self.count

    def env_steps(self) -> int:
        """Env steps that the rows are from; as many as there are rows, unless several agents shared an env."""
        return self.count if self.own_env_steps is None else self.own_env_steps

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

    def concat(self, other: SampleBatch) -> SampleBatch:
        """A new batch of both, as `concat_samples` makes it."""
        return concat([self, other])

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

        def moved(leaf: Leaf) -> Leaf:
            has_numbers = isinstance(leaf, ARRAYS) and not nests.holds_objects(leaf)
            return nests.tensor_on(target, leaf, pin=pin_memory) if has_numbers else leaf

        dict.update(self, self.mapped(moved))
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
        columns, is_behind = self.row_by_row(), index == "last"
        row = range(self.count)[-1 if is_behind else int(index)]
        if view_requirements is None:
            before = (name for name, source in SHIFTED.items() if source in self)
            view_requirements = dict.fromkeys((self.OBS, *before, *filter(is_state_in, self)), ViewRequirement())
        made: dict[str, Any] = {}
        for name, view in view_requirements.items():
            view.require_own_step(name)
            source, at = name, row
            if is_behind:
                source = state_out_of(name) if is_state_in(name) else _BEHIND.get(name, name)
            elif name not in self and name in SHIFTED:
                source, at = SHIFTED[name], row - 1
            if view.used_for_compute_actions:
                made[name] = map_nest(partial(nests.take, rows=np.array([at])), columns[source])
        row_alone = self.like(made)
        row_alone[self.SEQ_LENS], row_alone.zero_padded = [1], False
        return row_alone

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
        return type(self), (self.mapped(_without_gaps),), vars(self).copy()

    def __repr__(self) -> str:
        lengths = self.lengths()
        grouped = "" if lengths is None else f" in {len(lengths)} sequences"
        return f"SampleBatch({self.count} rows{grouped}: {', '.join(self)})"


def concat(batches: Iterable[SampleBatch]) -> SampleBatch:
    """Batches as a new one; empty ones are passed over.

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
    made = first.like({})
    for name in first:
        axis = 1 if first.time_major and not counts_sequences(name) else 0
        columns = [dict.__getitem__(batch, name) for batch in filled]
        try:
            dict.__setitem__(made, name, map_nest(partial(nests.joined, axis=axis), *columns))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"columns named {name!r} do not fit: {error}") from error
    if first.max_seq_len is not None:
        made.max_seq_len = max(batch.max_seq_len or 0 for batch in filled)
    known = [(batch.num_grad_updates, batch.count) for batch in filled if batch.num_grad_updates is not None]
    if known:
        made.num_grad_updates = sum(updates * rows for updates, rows in known) / sum(rows for _, rows in known)
    made.is_training = all(batch.is_training for batch in filled)
    if any(batch.own_env_steps is not None for batch in filled):
        made.own_env_steps = sum(batch.env_steps() for batch in filled)
    return made


def _require_alike(first: SampleBatch, batch: SampleBatch) -> None:
    """Raise `ValueError` unless the second batch can stand behind the first."""
    if missing := first.keys() ^ batch.keys():
        raise ValueError(f"columns {sorted(missing)} are in some batches only; give them to all, or delete them")
    for trait in ("zero_padded", "time_major", "max_seq_len"):
        here, there = getattr(first, trait), getattr(batch, trait)
        may_differ = trait == "max_seq_len" and not first.zero_padded and None not in (here, there)
        if here != there and not may_differ:
            raise ValueError(f"batches differ in {trait}: {here} and {there}; it must be the same in all")


def _copied(leaf: Leaf) -> Leaf:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else copy(leaf)


def _without_gaps(leaf: Leaf) -> Leaf:
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.forc else leaf
