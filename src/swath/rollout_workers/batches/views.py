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
from swath.rollout_workers.batches.names import ColumnNames, is_state_in, state_out_of
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


BEFORE = {ColumnNames.PREV_ACTIONS: ColumnNames.ACTIONS, ColumnNames.PREV_REWARDS: ColumnNames.REWARDS}
"""Columns that hold what another held one step before."""

_BEHIND = {ColumnNames.OBS: ColumnNames.NEXT_OBS, **BEFORE}
"""Where the last row holds what these columns hold in the step behind it."""


def require_own_step(name: str, view: ViewRequirement) -> None:
    """Raise `ValueError` for a view of another step than the column's own."""
    if (view.data_col or name, view.shift) not in ((name, 0), (BEFORE.get(name), -1)):
        raise ValueError(
            f"view_requirements[{name!r}] has data_col={view.data_col!r} and shift={view.shift!r}; "
            f"it must be ViewRequirement({name!r}), columns of other steps are not made"
        )


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
        ValueError: a view of another step, or columns of different lengths.
    """
    columns, n_rows = row_by_row(batch), batch.count
    row = n_rows if index == "last" else int(index)
    if not n_rows or not -n_rows <= row < n_rows + (index == "last"):
        raise IndexError(f"index={index}, but the batch has {n_rows} rows")
    if view_requirements is None:
        wanted = [ColumnNames.OBS, *(name for name in BEFORE if BEFORE[name] in batch), *filter(is_state_in, batch)]
    else:
        for name, view in view_requirements.items():
            require_own_step(name, view)
        wanted = [name for name, view in view_requirements.items() if view.used_for_compute_actions]
    row = row + n_rows if row < 0 else row
    made = like(batch, {name: _input(columns, name, row, n_rows) for name in wanted})
    dict.__setitem__(made, ColumnNames.SEQ_LENS, np.ones(1, dtype=np.int32))
    made.zero_padded = False
    return made


def _input(columns: dict[str, Any], name: str, row: int, n_rows: int) -> Any:
    source = name
    if row == n_rows:
        source, row = state_out_of(name) if is_state_in(name) else _BEHIND.get(name, name), row - 1
    elif name not in columns and name in BEFORE:
        source, row = BEFORE[name], row - 1
    if source not in columns:
        raise KeyError(f"the input needs column {source!r}; the batch has {sorted(columns)}")
    return map_nest(lambda leaf: _row(leaf, row), columns[source])


def _row(leaf: Leaf, row: int) -> Leaf:
    """One row, with its dimension; zeros before the first."""
    if rows_of(leaf) is None:
        return leaf
    return leaf[row : row + 1] if row >= 0 else blank(leaf, 1)
