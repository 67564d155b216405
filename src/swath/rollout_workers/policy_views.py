"""Which optional columns a policy reads: in its input, and in batches.

             prev_actions  prev_rewards   infos  env_id  agent_id
Policy       both          both           -      -       -            what a class of one's own starts with
TorchPolicy  -             -              -      -       -            so that nobody pays for what nobody reads
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.views import BEFORE as SHIFTED
from swath.rollout_workers.batches.views import ViewRequirement, require_own_step

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
            _require_served(name, view)
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


def _require_served(name: str, view: ViewRequirement) -> None:
    if name not in OPTIONAL:
        raise ValueError(
            f"view_requirements[{name!r}]: workers add {', '.join(OPTIONAL)} where asked; what else a policy needs, "
            "it can add in postprocess_trajectory"
        )
    require_own_step(name, view)
