"""A dict of columns: how they are stored, read, counted and joined, and what `seq_lens` says of their rows.

seq_lens 2 3 1     rows  a a b b b c            not padded: one sequence behind the other
                   rows  a a . b b b c . .      padded to 3: each takes as many places
none               rows  a b c d e f            nothing is known of sequences
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from swath.errors import warn_of_no_effect
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames, is_state_in
from swath.rollout_workers.nests import ARRAYS, Array, as_array, as_tensor, holds_objects, leaves, map_nest, rows_of


def attempt_count_timesteps(tensor_dict: dict[str, Any]) -> int:
    """The sum of `seq_lens`, else the rows of the first column that can be counted, else 0.

    Columns named `infos`, `state_in_…` and `state_out_…` are not counted. Of a nested column the first leaf is.
    """
    seq_lens = dict.get(tensor_dict, ColumnNames.SEQ_LENS)
    if seq_lens is not None and len(seq_lens):
        return int(as_array(seq_lens).sum())
    for name, column in tensor_dict.items():
        if name not in (ColumnNames.INFOS, ColumnNames.SEQ_LENS) and not name.startswith((STATE_IN, STATE_OUT)):
            rows = rows_of(next((leaf for _, leaf in leaves(column)), None))
            if rows:
                return rows
    return 0


_NO_DONES = "'dones' cannot be set: it is computed; set 'terminateds' and 'truncateds'"

# What RLlib's batches have and these do not: the way out, by name.
_GONE_TOGETHER = {
    "compress decompress_if_needed pack_if_needed": "columns are never compressed: leave it out, or store batches with "
    "numpy.savez_compressed",
    "set_get_interceptor get_interceptor": "columns are read as they are; call to_device() for tensors",
    "accessed_keys added_keys deleted_keys": "batches do not record what is read or set: name the columns you need",
}
_GONE = {name: why for names, why in _GONE_TOGETHER.items() for name in names.split()}


def refused_attribute(batch: object, name: str) -> AttributeError:
    """The error for an attribute that a batch does not have, with the way out where RLlib's batches have it."""
    why = f": {_GONE[name]}" if name in _GONE else ""
    return AttributeError(f"{type(batch).__name__} has no attribute {name!r}{why}", name=name, obj=batch)


class ColumnDict(ColumnNames, dict[str, Any]):
    """Columns by name, with what is known about them as a whole.

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

    def __getitem__(self, name: Any) -> Any:
        return self._dones() if name == self.DONES else super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"there is no column {name!r}; there are {', '.join(self) or 'none'}")

    if not TYPE_CHECKING:  # a type checker must see which attributes there are not

        def __getattr__(self, name: str) -> Any:
            raise refused_attribute(self, name)

    def __setitem__(self, name: str, column: Any) -> None:
        if name == self.DONES:
            raise KeyError(_NO_DONES)
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

    def env_steps(self) -> int:
        """Env steps that the rows are from; as many as there are rows, unless several agents shared an env."""
        return self.count if self.own_env_steps is None else self.own_env_steps

    def copy(self, shallow: bool = False) -> Self:
        """A batch with arrays of its own; shallow, with the same arrays.

        Objects in `infos` and the like are the same in both.
        """
        made = self.like(dict(self) if shallow else self.mapped(_copied))
        made.own_env_steps = self.own_env_steps
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
        target = torch.device("cpu" if device is None else device)
        if pin_memory and target.type != "cuda":
            warn_of_no_effect("to_device(pin_memory=…)", f"it is for CUDA devices, the device is {target}")
        move = partial(_moved, device=target, pin_memory=pin_memory and target.type == "cuda")
        dict.update(self, self.mapped(move))
        return self

    def size_bytes(self) -> int:
        """Bytes of all leaves."""
        found = (leaf for column in self.values() for _, leaf in leaves(column))
        return sum(leaf.nbytes if isinstance(leaf, ARRAYS) else sys.getsizeof(leaf) for leaf in found)

    def like(self, columns: dict[str, Any]) -> Self:
        """Other columns, of which the same holds as of these; but for `own_env_steps`."""
        made = type(self)()
        dict.update(made, columns)
        vars(made).update(vars(self), own_env_steps=None)
        return made

    def mapped(self, function: Callable[[Any], Any]) -> dict[str, Any]:
        """The columns with `function(leaf)` in place of each leaf."""
        return {name: map_nest(function, column) for name, column in self.items()}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Columns and attributes. NumPy gives only arrays without gaps out of band: the others are packed first."""
        return type(self), (self.mapped(_without_gaps),), vars(self).copy()

    def check_lengths(self) -> None:
        """Raise `ValueError`, with names and lengths, unless all columns with a leading dimension are equally long.

        With `seq_lens` that is the sum of its numbers, or the places of padded sequences; `state_in_…` then have one
        row per sequence.
        """
        lengths, wanted, found = self._lengths(), None, []
        if lengths is None:
            shapes = {column.shape[:1] if isinstance(column, np.ndarray) else None for column in self.values()}
            if len(shapes) == 1 and not shapes & {None, ()}:
                return  # as in most batches
        elif not self.time_major:
            wanted = int(self._bounds(lengths)[-1])
        for name, column in self.items():
            n_states = None if lengths is None or not is_state_in(name) else len(lengths)
            for path, leaf in leaves(column, (name,)) if name != self.SEQ_LENS else ():
                n_rows = rows_of(leaf)
                if n_rows is not None:
                    wanted = n_rows if wanted is None and n_states is None else wanted
                    found.append((path, n_rows, wanted if n_states is None else n_states))
        if any(n_rows != needed for _, n_rows, needed in found):
            named = ", ".join(f"{'/'.join(map(str, path))}: {n_rows}" for path, n_rows, _ in found)
            needed = "one row per step" if lengths is None else f"{wanted} rows, for {len(lengths)} sequences"
            raise ValueError(f"columns of different lengths: {named}; every column needs {needed}")

    def _lengths(self) -> Array | None:
        """Rows of each sequence, None where there are none."""
        seq_lens = dict.get(self, self.SEQ_LENS)
        return None if seq_lens is None else as_array(seq_lens).astype(np.int64).reshape(-1)

    def _bounds(self, lengths: Array) -> Array:
        """Where in a column each sequence begins, and where the last one ends."""
        return np.append(0, np.cumsum(np.full_like(lengths, self.max_seq_len) if self.zero_padded else lengths))

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


def _without_gaps(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.forc else leaf


def _moved(leaf: Any, device: torch.device, *, pin_memory: bool) -> Any:
    """A leaf as a tensor on a device; what no tensor can hold stays as it is."""
    if not isinstance(leaf, ARRAYS) or holds_objects(leaf):
        return leaf
    tensor = as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
    tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
    tensor = tensor.pin_memory() if pin_memory and tensor.device.type == "cpu" else tensor
    return tensor.to(device, non_blocking=pin_memory)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return leaf.copy() if isinstance(leaf, np.ndarray | list) else leaf
