"""What a policy wants to be asked, and by which of its methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.policy import Actions, states_in
from swath.rollout_workers.policy_views import BEFORE, WantedColumns

_BY_COLUMNS, _BY_DICT = "compute_actions", "compute_actions_from_input_dict"


@dataclass(frozen=True)
class Wants:
    """What a policy asks for.

    Attributes:
        by_dict: it is asked with one dict of columns, else with arguments.
        seen: optional columns that are shown to it.
        kept: optional columns that its batches have.
        episodes: it is shown `Episode` objects.
    """

    by_dict: bool = False
    seen: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    episodes: bool = True

    @classmethod
    def of(cls, policy: Any) -> Wants:
        """What a policy's class and `view_requirements` say.

        Raises:
            ValueError: it requires a view that there is not.
        """
        columns = WantedColumns.of(policy.view_requirements)
        return cls(
            by_dict=_first_of(type(policy), (_BY_COLUMNS, _BY_DICT)) == _BY_DICT,
            seen=columns.input,
            kept=columns.batch,
            episodes=bool(getattr(policy, "looks_at_episodes", True)),
        )

    @property
    def before(self) -> bool:
        """Whether what was done one step before matters."""
        return bool(frozenset(BEFORE) & (self.seen | self.kept))

    @property
    def needs_notes(self) -> bool:
        """Whether it matters to the next answer what came of the last one."""
        return self.before or ColumnNames.INFOS in self.seen

    @property
    def records_before(self) -> bool:
        """Whether it is part of batches."""
        return bool(frozenset(BEFORE) & self.kept)


def asked(policy: Any, wants: Wants, columns: dict[str, Any], explore: bool, episodes: list[Any] | None) -> Actions:
    """What a policy answers to columns, by the one of its two methods that its class defines."""
    how = {"explore": explore, "timestep": policy.global_timestep, "episodes": episodes}
    answer: Actions
    if wants.by_dict:
        answer = policy.compute_actions_from_input_dict(SampleBatch(columns), **how)
        return answer
    answer = policy.compute_actions(
        columns[ColumnNames.OBS],
        states_in(columns),
        prev_action_batch=columns.get(ColumnNames.PREV_ACTIONS),
        prev_reward_batch=columns.get(ColumnNames.PREV_REWARDS),
        info_batch=columns.get(ColumnNames.INFOS),
        **how,
    )
    return answer


def _first_of(kind: type, names: tuple[str, ...]) -> str:
    """Which of the methods is defined by the class that is furthest from the base; the first, if all are."""
    for base in kind.__mro__:
        for name in names:
            if name in vars(base):
                return name
    return names[0]
