"""Who acts in an episode: a seat for each agent that has appeared, which knows where its transition stands."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swath.rollout_workers.episode import Episode, SharedTally

if TYPE_CHECKING:
    from swath.rollout_workers.sampling.multi_agent.role import Role

NO_ROW = -1


@dataclass(slots=True, eq=False)
class Seat:
    """An agent in an episode. Rows are those of its role.

    Attributes:
        agent: its id.
        role: of the policy that acts for it, for the whole episode.
        play: the episode.
        index: its place in the order of appearance.
        row: its latest observation.
        acted: the observation that it acted on last, if nothing came of it yet: its transition is open.
        before: the observation that it acted on in the transition before.
        paid: the reward of that transition.
        unpaid: rewards that are still to become part of a transition.
        version: of the weights that acted last.
        over: it has ended, and neither acts nor is written of any more.
        info: what the env said to it with its latest observation.
    """

    agent: Hashable
    role: Role
    play: Play
    index: int
    row: int = NO_ROW
    acted: int = NO_ROW
    before: int = NO_ROW
    paid: float = 0.0
    unpaid: float = 0.0
    version: int = 0
    over: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_acted(self) -> bool:
        """Whether it ever acted in the episode."""
        return self.acted != NO_ROW or self.before != NO_ROW


@dataclass(slots=True, eq=False)
class Play:
    """An episode of an env.

    Attributes:
        env: which.
        begun: how many steps the env had made before.
        tally: what is counted.
        episode: what callbacks and policies see of it.
        seats: by agent, in the order of appearance.
    """

    env: int
    begun: int
    tally: SharedTally
    episode: Episode
    seats: dict[Hashable, Seat] = field(default_factory=dict)


@dataclass(slots=True)
class Sight:
    """What an env has just shown.

    Attributes:
        seen: seats of the agents that were observed.
        due: those of them that act next.
    """

    seen: list[Seat] = field(default_factory=list)
    due: list[Seat] = field(default_factory=list)
