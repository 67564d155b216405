"""How far each env is, and how far it is handed out.

steps made       ▇▇▇▇▇▇▇▇▇▇▇▇│▇▇▇         │ the cut: what lies before it goes into the next batch
                 handed out▲                a transition lies where the step is that ended it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from swath.rollout.spaces import Array


@dataclass(frozen=True)
class Quota:
    """When a batch is complete.

    Attributes:
        length: F, steps of a fragment.
        fragments: N, how many of them.
        whole: not fragments, but at least as many steps in episodes that ended by themselves.
        by_agents: transitions of agents count, not steps of envs.
    """

    length: int
    fragments: int
    whole: bool = False
    by_agents: bool = False

    @classmethod
    def of(cls, config: Any, worker_index: int, num_envs: int, *, many_agents: bool) -> Quota:
        """As an `AlgorithmConfig` says now.

        Raises:
            ValueError: more sub-envs are to be handed out than there are.
        """
        wanted = config.num_envs_per_env_runner
        if wanted > num_envs:
            raise ValueError(f"num_envs_per_env_runner={wanted}, but the vector env has {num_envs} sub-envs")
        length = config.get_rollout_fragment_length(worker_index)
        by_agents = many_agents and config.count_steps_by == "agent_steps"
        return cls(length, wanted, config.batch_mode == "complete_episodes", by_agents)


class EnvProgress:
    """How far B envs were handed out.

    Args:
        clocks: int64 `[B]`, steps made, without those that were discarded.

    Attributes:
        handed: int64 `[B]`, up to where they were handed out.
        over: int64 `[B]`, up to where they belong to episodes that ended by themselves.
        agents_over: transitions that wait and are of such episodes.
    """

    def __init__(self, clocks: Array) -> None:
        self.clocks = clocks
        self.handed, self.over = np.zeros((2, len(clocks)), np.int64)
        self.agents_over = 0

    @property
    def waiting(self) -> int:
        """Steps that wait, of all envs."""
        return int((self.clocks - self.handed).sum())

    def missing(self, quota: Quota) -> int:
        """How many more steps are needed at least."""
        if quota.whole or quota.by_agents:
            return 1
        return max(1, -((self.waiting - quota.length * quota.fragments) // len(self.clocks)))

    def cuts(self, quota: Quota, transitions: int) -> Array | None:
        """Up to where each env is handed out, once there is enough; so many transitions wait."""
        wanted = quota.length * quota.fragments
        if quota.whole:
            there = self.agents_over if quota.by_agents else int((self.over - self.handed).sum())
            return self.over.copy() if there >= wanted else None
        if quota.by_agents:
            return self.clocks.copy() if transitions >= wanted else None
        ready = (self.clocks - self.handed) // quota.length
        if ready.sum() < quota.fragments:
            return None
        cuts = self.handed.copy()
        if quota.fragments == len(cuts) and ready.all():
            return cuts + quota.length
        for _ in range(quota.fragments):  # of the envs that were served least
            env = min(np.flatnonzero(ready).tolist(), key=cuts.__getitem__)
            cuts[env] += quota.length
            ready[env] -= 1
        return cuts

    def hand_out(self, cuts: Array) -> None:
        """What lies before the cuts is handed out."""
        self.handed = cuts
        self.over = np.maximum(self.over, cuts)
        self.agents_over = 0

    def discard(self, env: int, steps: int) -> int:
        """The last steps of an env are discarded, as far as they were not handed out; how many these are."""
        lost = min(steps, int(self.clocks[env] - self.handed[env]))
        self.clocks[env] -= lost
        return lost
