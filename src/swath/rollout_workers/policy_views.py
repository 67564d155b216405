"""What a policy reads of other steps, and which optional columns it gets: in its input, and in batches.

             prev_actions  prev_rewards   infos  env_id  agent_id
Policy       both          both           -      -       -            what a class of one's own starts with
TorchPolicy  -             -              -      -       -            so that nobody pays for what nobody reads
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import Space

from swath.rollout_workers.batches.names import ColumnNames


@dataclass
class ViewRequirement:
    """A column that a policy reads.

    Attributes:
        data_col: the column that it is taken from; None for its own name.
        space: of one row, where it cannot be seen from the data.
        shift: 0 for the same step, -1 for the one before.
        index: only None; one row of a batch comes from `get_single_step_input_dict(index=…)`.
        batch_repeat_value: only 1: a column has a value for each row.
        used_for_compute_actions: whether it is part of the input for actions.
        used_for_training: whether it is part of batches.

    Raises:
        ValueError: another `index` or `batch_repeat_value`.
    """

    data_col: str | None = None
    space: Space[Any] | None = None
    shift: int = 0
    index: int | None = None
    batch_repeat_value: int = 1
    used_for_compute_actions: bool = True
    used_for_training: bool = True

    def __post_init__(self) -> None:
        if self.index is not None or self.batch_repeat_value != 1:
            raise ValueError(
                f"ViewRequirement(index={self.index!r}, batch_repeat_value={self.batch_repeat_value!r}): columns have "
                "one value per row; leave both out, and add other columns in postprocess_trajectory"
            )


SHIFTED = {ColumnNames.PREV_ACTIONS: ColumnNames.ACTIONS, ColumnNames.PREV_REWARDS: ColumnNames.REWARDS}
"""Columns that hold what another held one step before."""

BEFORE = tuple(SHIFTED)
OPTIONAL = (*BEFORE, ColumnNames.INFOS, ColumnNames.ENV_ID, ColumnNames.AGENT_ID)
"""The columns that are there only if a policy asks for them."""


@dataclass(frozen=True)
class WantedColumns:
    """Optional columns, by where they go.

    Attributes:
        input: what the policy gets beside observations and states when it acts.
        batch: what becomes part of batches.
    """

    input: frozenset[str]
    batch: frozenset[str]

    @classmethod
    def of(cls, views: Mapping[str, ViewRequirement]) -> WantedColumns:
        """As the view requirements of a policy say.

        Raises:
            ValueError: a column that is not optional, or one of another step than its own.
        """
        for name, view in views.items():
            if name not in OPTIONAL:
                raise ValueError(
                    f"view_requirements[{name!r}]: workers add {', '.join(OPTIONAL)} where asked; what else a policy "
                    "needs, it can add in postprocess_trajectory"
                )
            require_own_step(name, view)
        return cls(
            frozenset(name for name, view in views.items() if view.used_for_compute_actions),
            frozenset(name for name, view in views.items() if view.used_for_training),
        )


def views(*wanted: str) -> dict[str, ViewRequirement]:
    """Requirements for all optional columns, of which these are wanted."""
    return {
        name: ViewRequirement(used_for_compute_actions=name in wanted, used_for_training=name in wanted)
        for name in OPTIONAL
    }


def require_own_step(name: str, view: ViewRequirement) -> None:
    """Raise `ValueError` for a view of another step than the column's own."""
    if (view.data_col or name, view.shift) not in ((name, 0), (SHIFTED.get(name), -1)):
        raise ValueError(
            f"view_requirements[{name!r}] has data_col={view.data_col!r} and shift={view.shift!r}; "
            f"it must be ViewRequirement({name!r}), columns of other steps are not made"
        )
