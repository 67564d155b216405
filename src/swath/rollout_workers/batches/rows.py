"""What is done to rows of a `SampleBatch`: their count, their lengths, and some of them in another order."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch

from swath.options import count
from swath.rollout_workers import nests
from swath.rollout_workers.batches import names
from swath.rollout_workers.batches.names import ColumnNames, ViewRequirement, counts_sequences
from swath.rollout_workers.nests import ARRAYS, Array, Leaf, as_array, leaves, map_nest, rows_of, take

if TYPE_CHECKING:
    from swath.rollout_workers.batches.sample_batch import SampleBatch

# The builtin, which a method of batches hides.
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


class Refusing:
    """Says what to do in place of what RLlib's batches have and these do not."""

    if not TYPE_CHECKING:  # a type checker must see which attributes there are not

        def __getattr__(self, name: str) -> Any:
            instead = _INSTEAD if name in _GONE.split() else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{instead}", name=name, obj=self)


def require_equal_lengths(batch: SampleBatch) -> None:
    """Raise `ValueError`, with names and lengths, unless all columns with a leading dimension are equally long.

    With `seq_lens` that is the sum of its numbers, or the places of padded sequences; `state_in_…` then have one
    row per sequence.
    """
    lengths = batch.lengths()
    if lengths is None:
        shapes = {column.shape[:1] if isinstance(column, np.ndarray) else None for column in batch.values()}
        if len(shapes) == 1 and not shapes & {None, ()}:
            return  # as in most batches
    of_rows, of_states, found = set[int](), set[int](), list[str]()
    if lengths is not None:
        of_states.add(len(lengths))
        of_rows.update(() if batch.time_major else (int(batch.places(lengths).sum()),))
    for path, leaf in leaves({name: column for name, column in batch.items() if name != batch.SEQ_LENS}):
        n_rows = rows_of(leaf)
        if n_rows is not None:
            (of_rows if lengths is None or not names.is_state_in(path[0]) else of_states).add(n_rows)
            found.append(f"{'/'.join(map(str, path))}: {n_rows}")
    if max(len(of_rows), len(of_states)) > 1:
        wanted = "one row per step" if lengths is None else f"as many rows as its {len(lengths)} sequences have"
        raise ValueError(f"columns of different lengths: {', '.join(found)}; every column needs {wanted}")


def dones_of(batch: SampleBatch) -> Any:
    """`terminateds | truncateds`, as they are stored; a fresh array that cannot be written."""
    flags = [batch[name] for name in (batch.TERMINATEDS, batch.TRUNCATEDS) if name in batch]
    if not flags:
        raise KeyError(f"'dones': the batch has neither 'terminateds' nor 'truncateds', but {sorted(batch)}")
    if all(isinstance(flag, torch.Tensor) for flag in flags):
        return torch.logical_or(flags[0], flags[-1])
    dones = np.asarray(np.logical_or(as_array(flags[0]), as_array(flags[-1])))
    dones.flags.writeable = False
    return dones


def step_input(batch: Batch, view_requirements: Mapping[str, ViewRequirement] | None, index: str | int) -> Batch:
    """One row of a trajectory as input for a policy; see `SampleBatch.get_single_step_input_dict`."""
    columns, is_behind = batch.row_by_row(), index == "last"
    row = range(batch.count)[-1 if is_behind else int(index)]
    if view_requirements is None:
        before = (name for name, source in names.SHIFTED.items() if source in batch)
        view_requirements = dict.fromkeys((batch.OBS, *before, *filter(names.is_state_in, batch)), ViewRequirement())
    made: dict[str, Any] = {}
    for name, view in view_requirements.items():
        view.require_own_step(name)
        source, at = name, row
        if is_behind:
            source = names.state_out_of(name) if names.is_state_in(name) else _BEHIND.get(name, name)
        elif name not in batch and name in names.SHIFTED:
            source, at = names.SHIFTED[name], row - 1
        if view.used_for_compute_actions:
            made[name] = map_nest(partial(take, rows=np.array([at])), columns[source])
    row_alone = batch.like(made)
    row_alone[batch.SEQ_LENS], row_alone.zero_padded = [1], False
    return row_alone


def sliced(batch: Batch, start: int, end: int, state_start: int | None, state_end: int | None) -> Batch:
    """Exactly these rows; see `SampleBatch.slice`."""
    lengths = batch.sequences()
    front = max(-count("start", start, least=None), 0)
    begin = min(max(start, 0), batch.count)
    stop = max(begin, min(count("end", end, least=0), batch.count))
    if lengths is None and not front:
        return taken(batch, slice(begin, stop))
    rows = np.append(np.full(front, -1), np.arange(begin, stop))
    if lengths is None:
        return taken(batch, rows)
    if batch.zero_padded:
        raise ValueError("of padded sequences only whole ones can be taken; use batch[i:j], or cut before padding")
    of = np.repeat(np.arange(len(lengths)), lengths)[begin:stop]
    of = np.append(np.full(front, of[0] if len(of) else 0), of)  # zeros in front belong to the first sequence
    bounds = (int(of[0]), int(of[-1]) + 1) if len(of) else (0, 0)
    if (state_start, state_end) not in ((None, None), bounds):
        given = (state_start, state_end)
        raise ValueError(f"rows {start} to {end} are from sequences {bounds[0]} to {bounds[1]}, not {given}")
    return regrouped(batch, rows, np.unique(of, return_counts=True)[1])


def padded(batch: Batch, max_seq_len: int, *, exclude_states: bool) -> Batch:
    """The batch itself with padded sequences; see `SampleBatch.right_zero_pad`."""
    if not exclude_states:
        raise ValueError("exclude_states=False is not served: states have one row per sequence; leave it out")
    stride, lengths = count("max_seq_len", max_seq_len), batch.sequences()
    if lengths is None:
        raise ValueError(f"right_zero_pad() needs 'seq_lens'; this batch has only {sorted(batch)}")
    if batch.zero_padded and stride != batch.max_seq_len:
        raise ValueError(f"padded to {batch.max_seq_len} already; pad the batch they are from to {stride}")
    longest = lengths.max(initial=0)
    if longest > stride:
        raise ValueError(f"max_seq_len={stride}, but there is a sequence of {longest} rows; use at least that")
    if not batch.zero_padded:
        rows = np.full(len(lengths) * stride, -1)
        rows[valid_places(lengths, stride)] = np.arange(batch.count)
        dict.update(batch, taken(batch, rows))
        batch.zero_padded, batch.max_seq_len = True, stride
    return batch


def taken(batch: Batch, rows: Slice | Array, of_sequences: Slice | Array = slice(None)) -> Batch:
    """These places of columns, and these of columns that have one row per sequence, by default all."""
    pick, pick_sequences = partial(take, rows=rows), partial(take, rows=of_sequences)
    if ColumnNames.SEQ_LENS not in batch:
        return batch.like(batch.mapped(pick))
    return batch.like(
        {name: map_nest(pick_sequences if counts_sequences(name) else pick, batch[name]) for name in batch}
    )


def regrouped(batch: Batch, rows: Array, lengths: Array) -> Batch:
    """These rows of sequences without padding, copied, as sequences of other lengths; zeros for rows below 0.

    The state before a sequence is that at the beginning of its first row's, or what the row before gave out, if the
    batch has that.
    """
    seq_lens = batch[ColumnNames.SEQ_LENS]
    old = as_array(seq_lens).reshape(-1)
    starts, of_rows = np.cumsum(old) - old, np.repeat(np.arange(len(old)), old)
    firsts = np.maximum(rows[np.cumsum(lengths) - lengths], 0)
    made = taken(batch, rows, of_rows[firsts])
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


def valid_places(lengths: Array, stride: int) -> Array:
    """Which places of sequences that are padded to `stride` hold rows."""
    return (np.arange(stride) < lengths[:, None]).ravel()


def row(i: int, leaf: Leaf) -> Leaf:
    """Row `i` of a leaf."""
    return leaf if rows_of(leaf) is None else leaf[i]


def without_gaps(leaf: Leaf) -> Leaf:
    """The leaf, packed if its array has gaps."""
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.forc else leaf


def copied(leaf: Leaf) -> Leaf:
    """A copy of a leaf."""
    return leaf.clone() if isinstance(leaf, torch.Tensor) else copy(leaf)


def moved(leaf: Leaf, device: torch.device, *, pin: bool) -> Leaf:
    """A leaf as a tensor on a device; what no tensor can hold stays as it is."""
    if not isinstance(leaf, ARRAYS) or nests.holds_objects(leaf):
        return leaf
    tensor = nests.tensor_of(leaf)
    tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
    tensor = tensor.pin_memory() if pin and tensor.device.type == "cpu" else tensor
    return tensor.to(device, non_blocking=pin)
