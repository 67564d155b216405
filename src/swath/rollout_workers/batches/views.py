"""What a policy wants to see of other steps, and the input for a single one.

time     0     1     2   "last"
obs      o0    o1    o2   new_obs of 2
actions  a0    a1    a2   none yet             prev_actions at "last" is a2, at 0 zeros
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space

from swath.rollout_workers.batches.columns import SomeColumns, like
from swath.rollout_workers.batches.leaves import Leaf, blank, rows_of
from swath.rollout_workers.batches.names import STATE_IN, ColumnNames, is_state_in, state_out_of
from swath.rollout_workers.batches.rows import row_by_row
from swath.rollout_workers.nests import map_nest


@dataclass
class ViewRequirement:
    """A column that a policy reads.

    Attributes:
        data_col: the column that it is taken from; None for its own name.
        space: of one row, where it cannot be seen from the data.
        shift: 0 for the same step, -1 for the one before.
        used_for_compute_actions: whether it is part of the input for actions.
        used_for_training: whether it is part of batches.
    """

    data_col: str | None = None
    space: Space[Any] | None = None
    shift: int = 0
    used_for_compute_actions: bool = True
    used_for_training: bool = True


_BEFORE = {ColumnNames.PREV_ACTIONS: ColumnNames.ACTIONS, ColumnNames.PREV_REWARDS: ColumnNames.REWARDS}
_AHEAD = {ColumnNames.OBS: ColumnNames.NEXT_OBS, **_BEFORE}


def single_step(
    batch: SomeColumns, view_requirements: dict[str, ViewRequirement] | None, index: str | int
) -> SomeColumns:
    """One row as input for a policy: that of a step of this trajectory, or of the step after its last.

    Args:
        batch: of one trajectory.
        view_requirements: columns of the input; None for the observation and, where the batch has them, the action and
            the reward before it and the state.
        index: which row, negative from the end; "last" for what follows on the last: its `new_obs`, action, reward and
            state become what was observed, done, got and remembered.

    Raises:
        IndexError: no such row.
        KeyError: a column that the batch cannot give.
        ValueError: another word than "last", another shift than 0 and -1, or columns of different lengths.
    """
    wanted = _default_views(batch) if view_requirements is None else view_requirements
    columns, time = row_by_row(batch), _time(index, batch.count)
    row = {
        name: _viewed(columns, time, view.data_col or name, _checked_shift(name, view))
        for name, view in wanted.items()
        if view.used_for_compute_actions
    }
    made = like(batch, {**row, ColumnNames.SEQ_LENS: np.ones(1, dtype=np.int32)})
    made.zero_padded = False
    return made


def _default_views(batch: SomeColumns) -> dict[str, ViewRequirement]:
    before = [name for name, source in _BEFORE.items() if source in batch]
    states = [name for name in batch if is_state_in(name)]
    return {name: ViewRequirement() for name in (ColumnNames.OBS, *before, *states)}


def _time(index: str | int, n_rows: int) -> tuple[int, int]:
    """The row and how many there are; the row behind the end is "last"."""
    if isinstance(index, str):
        if index != "last":
            raise ValueError(f"index={index!r} must be a row or 'last'")
        index = n_rows
    elif not -n_rows <= index < n_rows:
        raise IndexError(f"index={index}, but the batch has {n_rows} rows")
    if not n_rows:
        raise IndexError("an empty batch has no row to make an input of")
    return (index + n_rows if index < 0 else index), n_rows


def _checked_shift(name: str, view: ViewRequirement) -> int:
    if view.shift not in (0, -1):
        raise ValueError(f"view requirement {name!r} has shift={view.shift!r}; it must be 0 or -1")
    return view.shift


def _viewed(columns: dict[str, Any], time: tuple[int, int], name: str, shift: int) -> Any:
    row, n_rows = time
    if row + shift == n_rows:
        return map_nest(lambda leaf: _row(leaf, n_rows - 1), _column(columns, _source(name)))
    if name in columns or name not in _BEFORE:
        return map_nest(lambda leaf: _row(leaf, row + shift), _column(columns, name))
    return map_nest(lambda leaf: _row(leaf, row + shift - 1), _column(columns, _BEFORE[name]))


def _source(name: str) -> str:
    """The column that holds, for the last step, what this one would hold for the next."""
    return state_out_of(name) if name.startswith(STATE_IN) else _AHEAD.get(name, name)


def _column(columns: dict[str, Any], name: str) -> Any:
    if name not in columns:
        raise KeyError(f"the input needs column {name!r}; the batch has {sorted(columns)}")
    return columns[name]


def _row(leaf: Leaf, row: int) -> Leaf:
    """One row, with its dimension; zeros before the first."""
    if rows_of(leaf) is None:
        return leaf
    return leaf[row : row + 1] if row >= 0 else blank(leaf, 1)
