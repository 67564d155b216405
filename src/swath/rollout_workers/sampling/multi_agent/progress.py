"""How far each env is, and how far it is handed out.

steps made       ▇▇▇▇▇▇▇▇▇▇▇▇│▇▇▇         │ the cut: what lies before it goes into the next batch
                 handed out▲                a transition lies where the step is that closed it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True)
class Plan:
    """When a batch is complete.

    Attributes:
        length: steps of a fragment of each env.
        num_envs: how many envs there are.
        whole: only episodes that ended by themselves are handed out.
        by_agents: transitions of agents count, not steps of envs.
    """

    length: int
    num_envs: int
    whole: bool
    by_agents: bool

    @classmethod
    def of(cls, config: Any, length: int, num_envs: int) -> Plan:
        """As an `AlgorithmConfig` says."""
        whole, by_agents = config.batch_mode == "complete_episodes", config.count_steps_by == "agent_steps"
        return cls(length, num_envs, whole, by_agents)

    def share(self, progress: Progress) -> Share | None:
        """What is handed out, once there is enough of it."""
        if self.whole:
            return self._whole_episodes(progress)
        if not self.by_agents:
            return self._fragments(progress)
        if progress.agent_steps < self.length * self.num_envs:
            return None
        return Share(list(progress.clocks), sum(progress.waiting))

    def _whole_episodes(self, progress: Progress) -> Share | None:
        """Up to the last end of an episode in each env, once these episodes have enough steps."""
        over = [episode for episodes in progress.finished for episode in episodes]
        steps = sum(episode.agent_steps if self.by_agents else episode.env_steps for episode in over)
        if steps < self.length * self.num_envs:
            return None
        ends = zip(progress.finished, progress.handed, strict=True)
        cuts = [episodes[-1].end if episodes else handed for episodes, handed in ends]
        return Share(cuts, sum(episode.env_steps for episode in over))

    def _fragments(self, progress: Progress) -> Share | None:
        """The fragments of the envs that were served least, once there are as many as envs."""
        ready = [steps // self.length for steps in progress.waiting]
        if sum(ready) < self.num_envs:
            return None
        cuts = list(progress.handed)
        for _ in range(self.num_envs):
            env = min((env for env, n in enumerate(ready) if n), key=lambda env: cuts[env])
            cuts[env] += self.length
            ready[env] -= 1
        return Share(cuts, self.num_envs * self.length)
