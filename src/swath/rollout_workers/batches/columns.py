"""A dict of columns: how they are stored, read and counted."""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from swath.options import count
from swath.rollout_workers.batches.leaves import as_array, is_array, is_nest, leaves
from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT, ColumnNames
from swath.rollout_workers.nests import map_nest

_NOT_COUNTED = (ColumnNames.INFOS, ColumnNames.SEQ_LENS)


def attempt_count_timesteps(tensor_dict: dict[str, Any]) -> int:
    """The sum of `seq_lens`, else the rows of the first column that can be counted, else 0.

    Columns named `infos`, `state_in_…` and `state_out_…` are not counted. Of a nested column the first leaf is.
    """
    in_sequences = rows_in_sequences(dict.get(tensor_dict, ColumnNames.SEQ_LENS))
    if in_sequences is not None:
        return in_sequences
    countable = (
        column
        for name, column in tensor_dict.items()
        if name not in _NOT_COUNTED and not name.startswith((STATE_IN, STATE_OUT))
    )
    return next(filter(None, map(_rows, countable)), 0)


def rows_in_sequences(seq_lens: Any) -> int | None:
    """The sum of `seq_lens`; None where they are missing or empty."""
    return int(sum(seq_lens) if isinstance(seq_lens, list) else seq_lens.sum()) if _is_filled(seq_lens) else None


def _is_filled(seq_lens: Any) -> bool:
    return seq_lens is not None and len(seq_lens) > 0


def _rows(column: Any) -> int:
    leaf: Any = next((leaf for _, leaf in leaves(column)), None)
    if isinstance(leaf, list | Number):
        leaf = np.array(leaf)
    return int(leaf.shape[0]) if is_array(leaf) and leaf.ndim else 0


_NO_DONES = "'dones' cannot be set: it is computed; set 'terminateds' and 'truncateds'"

_SHARED = ("time_major", "max_seq_len", "zero_padded", "num_grad_updates", "_is_training")
"""What holds for parts of a batch as for the whole."""

_GONE = {
    "compress": "columns are not compressed; store batches with numpy.savez_compressed",
    "decompress_if_needed": "columns are never compressed; leave it out",
    "pack_if_needed": "columns are not compressed; leave it out",
    **dict.fromkeys(
        ("set_get_interceptor", "get_interceptor"), "columns are read as they are; call to_device() for tensors"
    ),
    **dict.fromkeys(
        ("accessed_keys", "added_keys", "deleted_keys"), "batches do not record what is read; name the columns you need"
    ),
}
"""What RLlib's batches have and these do not: the way out, by name."""


class Columns(dict[str, Any]):
    """Columns by name, with what is known about them as a whole.

    Attributes:
        time_major: columns are `[T, B, …]`.
        max_seq_len: no sequence is longer.
        zero_padded: each sequence takes `max_seq_len` rows, with zeros behind its end.
        num_grad_updates: of the policy that acted; a mean, if there were several.
    """

    time_major: bool | None
    max_seq_len: int | None
    zero_padded: bool
    num_grad_updates: float | None
    _env_steps: int | None = None

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
        super().__init__({name: as_column(name, value) for name, value in given.items()})
        seq_lens = dict.get(self, ColumnNames.SEQ_LENS)
        if seq_lens is None:
            self.pop(ColumnNames.SEQ_LENS, None)
        elif _max_seq_len is None and len(seq_lens):
            _max_seq_len = int(seq_lens.max())
        self.time_major, self.max_seq_len, self.zero_padded = _time_major, _max_seq_len, _zero_padded
        self.num_grad_updates, self._is_training = _num_grad_updates, bool(_is_training)

    @property
    def count(self) -> int:
        """Rows: the sum of `seq_lens`, else the rows of the first column that can be counted, else 0."""
        return attempt_count_timesteps(self)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, name: str) -> Any:
        return dones_of(self) if name == ColumnNames.DONES else super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"there is no column {name!r}; there are {', '.join(dict.keys(self)) or 'none'}")

    if not TYPE_CHECKING:  # a type checker must see which attributes there are not

        def __getattr__(self, name: str) -> Any:
            raise refused_attribute(self, name)

    def __setitem__(self, name: str, column: Any) -> None:
        if name == ColumnNames.DONES:
            raise KeyError(_NO_DONES)
        super().__setitem__(name, as_column(name, column))

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

    @property
    def is_training(self) -> bool:
        """Whether the batch is for an update, not for choosing actions."""
        return self._is_training

    def set_training(self, training: bool = True) -> None:
        """Say whether the batch is for an update."""
        self._is_training = training

    def env_steps(self) -> int:
        """Env steps that the rows are from; as many as there are rows, unless several agents shared an env."""
        return self.count if self._env_steps is None else self._env_steps

    def set_env_steps(self, env_steps: int | None) -> None:
        """Say that the rows are from so many steps of multi-agent envs; None: from one each.

        Copies keep the number, `concat` adds it up, parts of the batch do not have it.
        """
        self._env_steps = None if env_steps is None else count("env_steps", env_steps, least=0)

    @property
    def has_own_env_steps(self) -> bool:
        """Whether the rows are from several agents, so that `env_steps` is a number of its own."""
        return self._env_steps is not None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Columns and attributes; arrays travel out of band.

        NumPy gives only arrays without gaps out of band, so the others are packed tightly first.
        """
        columns = {name: map_nest(_without_gaps, column) for name, column in self.items()}
        state = {name: getattr(self, name) for name in (*_SHARED, "_env_steps")}
        return type(self), (columns,), state


SomeColumns = TypeVar("SomeColumns", bound=Columns)


def refused_attribute(batch: object, name: str) -> AttributeError:
    """The error for an attribute that a batch does not have, with the way out where RLlib's batches have it."""
    why = f": {_GONE[name]}" if name in _GONE else ""
    return AttributeError(f"{type(batch).__name__} has no attribute {name!r}{why}", name=name, obj=batch)


def as_column(name: str, value: Any) -> Any:
    """The value as it is stored: lists and numbers as arrays, except in `infos`.

    Raises:
        ValueError: a list whose parts have different shapes.
    """
    if name == ColumnNames.INFOS:
        return value
    if name == ColumnNames.SEQ_LENS:
        return _as_seq_lens(value)
    try:
        if not is_nest(value):
            return _as_array(value)
        plain = any(isinstance(leaf, list | Number) for _, leaf in leaves(value))
        return map_nest(_as_array, value) if plain else value
    except ValueError as error:
        raise ValueError(f"column {name!r} cannot become an array, its parts differ in shape: {error}") from error


def dones_of(batch: Columns) -> Any:
    """`terminateds | truncateds`, as they are stored; a fresh array that cannot be written.

    Raises:
        KeyError: the batch has neither.
    """
    names = (ColumnNames.TERMINATEDS, ColumnNames.TRUNCATEDS)
    flags = [flag for flag in (dict.get(batch, name) for name in names) if flag is not None]
    if not flags:
        raise KeyError(f"'dones': the batch has neither 'terminateds' nor 'truncateds', but {sorted(batch)}")
    if all(isinstance(flag, torch.Tensor) for flag in flags):
        return torch.logical_or(flags[0], flags[-1])
    dones = np.asarray(np.logical_or(as_array(flags[0]), as_array(flags[-1])))
    dones.flags.writeable = False
    return dones


def like(batch: SomeColumns, columns: dict[str, Any]) -> SomeColumns:
    """Other columns, of which the same holds as of those of the batch."""
    made = type(batch)(columns)
    for name in _SHARED:
        setattr(made, name, getattr(batch, name))
    return made


def _as_array(value: Any) -> Any:
    return np.array(value) if isinstance(value, list | Number) else value


def _as_seq_lens(value: Any) -> Any:
    if value is None or (isinstance(value, list | tuple) and not value):
        return None
    return np.array(value, dtype=np.int32) if isinstance(value, list | tuple) else value


def _without_gaps(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.forc else leaf
