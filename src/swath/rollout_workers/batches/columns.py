"""A dict of columns: how they are stored, read and counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from swath.errors import warn_of_no_effect
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames
from swath.rollout_workers.nests import ARRAYS, Leaf, as_array, as_tensor, holds_objects, leaves, map_nest, rows_of


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

# What holds for parts of a batch as for the whole.
_KEPT = ("time_major", "max_seq_len", "zero_padded", "num_grad_updates", "is_training")

_GONE = {
    "compress": "columns are not compressed; store batches with numpy.savez_compressed",
    "decompress_if_needed": "columns are never compressed; leave it out",
    "set_get_interceptor": "columns are read as they are; call to_device() for tensors",
    "accessed_keys": "batches do not record what is read; name the columns you need",
}
_GONE["pack_if_needed"], _GONE["get_interceptor"] = _GONE["compress"], _GONE["set_get_interceptor"]
# What RLlib's batches have and these do not: the way out, by name.
_GONE["added_keys"] = _GONE["deleted_keys"] = _GONE["accessed_keys"]


class Columns(dict[str, Any]):
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
        given = dict(*args, **columns)
        if ColumnNames.DONES in given:
            raise KeyError(_NO_DONES)
        super().__init__({name: _as_column(name, column) for name, column in given.items()})
        seq_lens = dict.get(self, ColumnNames.SEQ_LENS)
        if seq_lens is None:
            self.pop(ColumnNames.SEQ_LENS, None)
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

    def __getitem__(self, name: str) -> Any:
        return self._dones() if name == ColumnNames.DONES else super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"there is no column {name!r}; there are {', '.join(self) or 'none'}")

    if not TYPE_CHECKING:  # a type checker must see which attributes there are not

        def __getattr__(self, name: str) -> Any:
            raise refused_attribute(self, name)

    def __setitem__(self, name: str, column: Any) -> None:
        if name == ColumnNames.DONES:
            raise KeyError(_NO_DONES)
        super().__setitem__(name, _as_column(name, column))

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
        """Other columns, of which the same holds as of these."""
        made = type(self)()
        dict.update(made, columns)
        for name in _KEPT:
            setattr(made, name, getattr(self, name))
        return made

    def mapped(self, function: Callable[[Leaf], Leaf]) -> dict[str, Any]:
        """The columns with `function(leaf)` in place of each leaf."""
        return {name: map_nest(function, column) for name, column in self.items()}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Columns and attributes; arrays travel out of band.

        NumPy gives only arrays without gaps out of band, so the others are packed tightly first.
        """
        state = {name: getattr(self, name) for name in (*_KEPT, "own_env_steps")}
        return type(self), (self.mapped(_without_gaps),), state

    def _dones(self) -> Any:
        """`terminateds | truncateds`, as they are stored; a fresh array that cannot be written."""
        names = (ColumnNames.TERMINATEDS, ColumnNames.TRUNCATEDS)
        flags = [flag for flag in (dict.get(self, name) for name in names) if flag is not None]
        if not flags:
            raise KeyError(f"'dones': the batch has neither 'terminateds' nor 'truncateds', but {sorted(self)}")
        if all(isinstance(flag, torch.Tensor) for flag in flags):
            return torch.logical_or(flags[0], flags[-1])
        dones = np.asarray(np.logical_or(as_array(flags[0]), as_array(flags[-1])))
        dones.flags.writeable = False
        return dones


def refused_attribute(batch: object, name: str) -> AttributeError:
    """The error for an attribute that a batch does not have, with the way out where RLlib's batches have it."""
    why = f": {_GONE[name]}" if name in _GONE else ""
    return AttributeError(f"{type(batch).__name__} has no attribute {name!r}{why}", name=name, obj=batch)


def _as_column(name: str, value: Any) -> Any:
    """The value as it is stored: lists and numbers as arrays, except in `infos`."""
    if isinstance(value, ARRAYS) or name == ColumnNames.INFOS:
        return value
    if name == ColumnNames.SEQ_LENS and isinstance(value, list | tuple):
        return np.array(value, dtype=np.int32) if value else None
    try:
        return map_nest(lambda leaf: np.array(leaf) if isinstance(leaf, list | Number) else leaf, value)
    except ValueError as error:
        raise ValueError(f"column {name!r} cannot become an array, its parts differ in shape: {error}") from error


def _without_gaps(leaf: Leaf) -> Leaf:
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.forc else leaf


def _moved(leaf: Leaf, device: torch.device, *, pin_memory: bool) -> Leaf:
    """A leaf as a tensor on a device; what no tensor can hold stays as it is."""
    if not isinstance(leaf, ARRAYS) or holds_objects(leaf):
        return leaf
    tensor = as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
    tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
    tensor = tensor.pin_memory() if pin_memory and tensor.device.type == "cpu" else tensor
    return tensor.to(device, non_blocking=pin_memory)


def _copied(leaf: Leaf) -> Leaf:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return leaf.copy() if isinstance(leaf, np.ndarray | list) else leaf
