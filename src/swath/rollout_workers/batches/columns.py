"""A dict of columns: how they are stored, read and counted.

batch["obs"] ──▶ stored ──▶ interceptor, if there is one ──▶ the reader        cached until the column changes
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any, Self, TypeVar

import numpy as np
import torch

from swath.options import count
from swath.rollout_workers.batches.counting import attempt_count_timesteps
from swath.rollout_workers.batches.leaves import as_array, is_nest, leaves
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.nests import map_nest

_NO_DONES = "'dones' cannot be set: it is computed; set 'terminateds' and 'truncateds'"

_SHARED = ("time_major", "max_seq_len", "zero_padded", "num_grad_updates", "_is_training")
"""What holds for parts of a batch as for the whole."""

_OWN = ("_env_steps", "packed_rows")


class Columns(dict[str, Any]):
    """Columns by name, with what is known about them as a whole.

    Attributes:
        time_major: columns are `[T, B, …]`.
        max_seq_len: no sequence is longer.
        zero_padded: each sequence takes `max_seq_len` rows, with zeros behind its end.
        num_grad_updates: of the policy that acted; a mean, if there were several.
        packed_rows: rows of columns that are packed whole, since they cannot be counted.
        accessed_keys: columns that were read.
        added_keys: columns that were set after the batch was made.
        deleted_keys: columns that were deleted.
    """

    time_major: bool | None
    max_seq_len: int | None
    zero_padded: bool
    num_grad_updates: float | None

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
        self._reset()
        seq_lens = dict.get(self, ColumnNames.SEQ_LENS)
        if seq_lens is None:
            self.pop(ColumnNames.SEQ_LENS, None)
        elif _max_seq_len is None and len(seq_lens):
            _max_seq_len = int(seq_lens.max())
        self.time_major, self.max_seq_len, self.zero_padded = _time_major, _max_seq_len, _zero_padded
        self.num_grad_updates, self._is_training = _num_grad_updates, bool(_is_training)

    def _reset(self) -> None:
        self._env_steps: int | None = None
        self.packed_rows: int | None = None
        self.accessed_keys: set[str] = set()
        self.added_keys: set[str] = set()
        self.deleted_keys: set[str] = set()
        self._interceptor: Callable[[Any], Any] | None = None
        self._intercepted: dict[str, tuple[Any, Any]] = {}

    @property
    def count(self) -> int:
        """Rows: the sum of `seq_lens`, else the rows of the first column that can be counted, else 0."""
        return attempt_count_timesteps(self) or self.packed_rows or 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, name: str) -> Any:
        column = dones_of(self) if name == ColumnNames.DONES else super().__getitem__(name)
        self.accessed_keys.add(name)
        return column if self._interceptor is None else self._seen(name, column)

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"there is no column {name!r}; there are {', '.join(dict.keys(self)) or 'none'}")

    def _seen(self, name: str, column: Any) -> Any:
        """What the interceptor makes of a column; asked again only if the column is another."""
        known = self._intercepted.get(name)
        if known is None or known[0] is not column:
            assert self._interceptor is not None
            known = self._intercepted[name] = (column, self._interceptor(column))
        return known[1]

    def __setitem__(self, name: str, column: Any) -> None:
        if name == ColumnNames.DONES:
            raise KeyError(_NO_DONES)
        if name not in self:
            self.added_keys.add(name)
        super().__setitem__(name, as_column(name, column))
        self._intercepted.pop(name, None)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.deleted_keys.add(name)

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

    def setdefault(self, name: str, default: Any = None) -> Any:
        """A column, set to the default if there is none."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, other: Any) -> Self:  # type: ignore[override, misc]
        self.update(other)
        return self

    def set_get_interceptor(self, fn: Callable[[Any], Any] | None) -> None:
        """Show readers `fn(column)` instead of each column; `fn` is asked again only after a column is set or shuffled.

        None shows the columns themselves. Operations on rows are on the columns themselves, their results have no
        interceptor; `copy` keeps it.
        """
        if fn is not self._interceptor:
            self._intercepted = {}
        self._interceptor = fn

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

    def take_notes_of(self, other: Columns) -> None:
        """Count env steps, show columns and know what was read as another batch does, of which this is a copy."""
        for name in _OWN:
            setattr(self, name, getattr(other, name))
        self.accessed_keys, self.added_keys = set(other.accessed_keys), set(other.added_keys)
        self.deleted_keys, self._interceptor = set(other.deleted_keys), other._interceptor

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Columns and attributes; neither the interceptor nor what was read. Arrays travel out of band.

        NumPy gives only arrays without gaps out of band, so the others are packed tightly first.
        """
        columns = {name: map_nest(_without_gaps, column) for name, column in self.items()}
        return _rebuilt, (type(self), columns, {name: getattr(self, name) for name in (*_SHARED, *_OWN)})


SomeColumns = TypeVar("SomeColumns", bound=Columns)


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


def _rebuilt(cls: type[SomeColumns], columns: dict[str, Any], attributes: dict[str, Any]) -> SomeColumns:
    made = cls.__new__(cls)
    dict.update(made, columns)
    Columns._reset(made)  # noqa: SLF001  the part of `__init__` that every batch needs, whatever arguments a subclass has
    for name, value in attributes.items():
        setattr(made, name, value)
    return made
