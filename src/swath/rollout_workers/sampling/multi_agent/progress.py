"""How far each env is, and how far it is handed out.

steps made       ▇▇▇▇▇▇▇▇▇▇▇▇│▇▇▇         │ the cut: what lies before it goes into the next batch
                 handed out▲                a transition lies where the step is that closed it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True)
class Finished:
    """An episode that ended by itself.

    Attributes:
        end: steps that its env had made then.
        env_steps: its steps.
        agent_steps: transitions of its agents.
    """

    end: int
    env_steps: int
    agent_steps: int


class Progress:
    """The steps of N envs.

    Attributes:
        clocks: steps made, per env, without those that were discarded.
        handed: up to where they were handed out.
        finished: episodes that wait to be handed out.
        agent_steps: transitions that wait.
    """

    def __init__(self, num_envs: int) -> None:
        self.clocks = [0] * num_envs
        self.handed = [0] * num_envs
        self.finished: list[list[Finished]] = [[] for _ in range(num_envs)]
        self.agent_steps = 0

    def hand_out(self, share: Share) -> None:
        """These steps are handed out."""
        self.handed = list(share.cuts)
        for env, cut in enumerate(share.cuts):
            self.finished[env] = [episode for episode in self.finished[env] if episode.end > cut]

    @property
    def waiting(self) -> list[int]:
        """Steps that wait, per env."""
        return [clock - handed for clock, handed in zip(self.clocks, self.handed, strict=True)]


@dataclass(frozen=True)
class Share:
    """What is handed out next.

    Attributes:
        cuts: up to where, per env.
        env_steps: how many steps that are.
    """

    cuts: list[int]
    env_steps: int


class Plan(Protocol):
    """When a batch is complete."""

    whole: ClassVar[bool]
    """Whether only episodes that ended by themselves are handed out."""

    @property
    def number(self) -> int:
        """Of fragments or steps."""

    def share(self, progress: Progress) -> Share | None:
        """What is handed out, once there is enough of it."""


@dataclass(frozen=True)
class StepsPerEnv:
    """So many steps of each env; envs that are ahead keep what is left for the next time.

    Attributes:
        length: of a fragment.
        number: of fragments.
    """

    length: int
    number: int
    whole: ClassVar[bool] = False

    def share(self, progress: Progress) -> Share | None:
        """The fragments of the envs that were served least, once there are as many as are wanted."""
        ready = [steps // self.length for steps in progress.waiting]
        if sum(ready) < self.number:
            return None
        cuts = list(progress.handed)
        for _ in range(self.number):
            env = min((env for env, n in enumerate(ready) if n), key=lambda env: cuts[env])
            cuts[env] += self.length
            ready[env] -= 1
        return Share(cuts, self.number * self.length)


@dataclass(frozen=True)
class AgentSteps:
    """All that there is, once it is so many transitions.

    Attributes:
        number: of transitions.
    """

    number: int
    whole: ClassVar[bool] = False

    def share(self, progress: Progress) -> Share | None:
        """All steps that wait."""
        if progress.agent_steps < self.number:
            return None
        return Share(list(progress.clocks), sum(progress.waiting))


@dataclass(frozen=True)
class WholeEpisodes:
    """All episodes that are over, once they have so many steps.

    Attributes:
        number: of steps.
        measure: which steps of an episode count.
    """

    number: int
    measure: Callable[[Finished], int]
    whole: ClassVar[bool] = True

    def share(self, progress: Progress) -> Share | None:
        """Up to the last end of an episode in each env."""
        over = [episode for episodes in progress.finished for episode in episodes]
        if sum(map(self.measure, over)) < self.number:
            return None
        ends = zip(progress.finished, progress.handed, strict=True)
        cuts = [episodes[-1].end if episodes else handed for episodes, handed in ends]
        return Share(cuts, sum(episode.env_steps for episode in over))


def plan_of(config: Any, length: int, num_envs: int) -> Plan:
    """As an `AlgorithmConfig` says, for fragments of this length from each env."""
    by_agents = config.count_steps_by == "agent_steps"
    if config.batch_mode == "complete_episodes":
        return WholeEpisodes(length * num_envs, _agent_steps if by_agents else _env_steps)
    return AgentSteps(length * num_envs) if by_agents else StepsPerEnv(length, num_envs)


def _env_steps(episode: Finished) -> int:
    return episode.env_steps


def _agent_steps(episode: Finished) -> int:
    return episode.agent_steps
