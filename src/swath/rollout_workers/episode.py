"""Episodes as callbacks and policies see them: who acts in them, and their running sums.

An episode shows the sums of its agents' slots, so that one of any length takes the same room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from swath.rollout_workers.sampling.slots import Slots

# In the place of a row or a policy: there is none.
NONE = -1

# What is kept of the slots of its agents when an episode is over.
_SUMS = "before", "total", "clipped", "terminated", "truncated"

# The agent of an env that knows of none.
LONE_AGENT = "agent0"


@dataclass(eq=False, repr=False)
class Episode:
    """One episode of one sub-env: who acts in it by which policy, and its running sums, current whenever read.

    Attributes:
        episode_id: unique over workers and lives.
        env_id: the sub-env, by its number within the worker.
        worker: the worker in which it runs.
        policy_map: the policies by id.
        policy_mapping_fn: `f(agent_id, episode, worker=worker)`, asked once per agent; what it answers holds for the
            episode.
        custom_metrics: numbers to be reported with the episode, by name.
        user_data: whatever callbacks want to keep until its end.
        hist_data: lists of numbers to be reported with the episode, by name.
        media: whatever else is to be reported with it.
        has_begun: whether the sub-env was reset; that is yet to come when `on_episode_created` is called.
        slots: those of its agents, in the order of their appearance.
    """

    episode_id: int
    env_id: int
    _slots: Slots
    worker: Any
    policy_map: Mapping[str, Any]
    policy_mapping_fn: Callable[..., str]
    custom_metrics: dict[str, Any] = field(default_factory=dict)
    user_data: dict[str, Any] = field(default_factory=dict)
    hist_data: dict[str, list[Any]] = field(default_factory=dict)
    media: dict[str, Any] = field(default_factory=dict)
    has_begun: bool = False
    slots: dict[Any, int] = field(default_factory=dict)
    _policies: dict[Any, str] = field(default_factory=dict)
    _infos: dict[Any, Any] = field(default_factory=dict)
    _kept: dict[str, list[Any]] | None = None
    _handed_out: int = 0

    @property
    def length(self) -> int:
        """Env steps made; -1 before the reset."""
        return self.total_env_steps if self.has_begun else -1

    @property
    def total_env_steps(self) -> int:
        """Env steps made."""
        return self._slots.length(self.env_id) if self._kept is None else self._steps

    @property
    def total_agent_steps(self) -> int:
        """Transitions of all agents."""
        return self._handed_out + self.active_agent_steps

    @property
    def active_env_steps(self) -> int:
        """Env steps that were not handed out in a batch yet, while it runs."""
        return self._slots.waiting(self)

    @property
    def active_agent_steps(self) -> int:
        """Transitions that were not handed out in a batch yet."""
        return int(np.count_nonzero(self._slots.transitions["episode"] == self.episode_id))

    @property
    def total_reward(self) -> float:
        """The sum over all agents and steps, after reward clipping."""
        return sum(self._each("total"), 0.0)

    @property
    def raw_reward(self) -> float:
        """The same before reward clipping."""
        return sum(self._each("clipped"), self.total_reward)

    @property
    def agent_rewards(self) -> dict[tuple[Any, str], float]:
        """The sum of rewards by (agent, policy), of agents that have made a transition."""
        sums = zip(self.slots, self._each("before"), self._each("total"), strict=True)
        return {(agent, self.policy_for(agent)): total for agent, before, total in sums if before != NONE}

    def policy_for(self, agent_id: Any = LONE_AGENT) -> str:
        """The id of the policy that acts for this agent in this episode, also if it was removed meanwhile.

        Raises:
            KeyError: the mapping function answered with an id that no policy has.
        """
        if agent_id not in self._policies:
            policy_id = self.policy_mapping_fn(agent_id, self, worker=self.worker)
            if policy_id not in self.policy_map:
                known = sorted(self.policy_map)
                raise KeyError(f"policy_mapping_fn gave {policy_id!r} for agent {agent_id!r}; there are {known}")
            self._policies[agent_id] = policy_id
        return self._policies[agent_id]

    def get_agents(self) -> list[Any]:
        """The agents that have appeared, in that order."""
        return list(self.slots)

    def agent_index(self, agent_id: Any) -> int:
        """The agent's place in the order of appearance; one that has not appeared would be the next."""
        return [*self.slots, agent_id].index(agent_id)

    def is_terminated(self, agent_id: Any = LONE_AGENT) -> bool:
        """Whether the agent's last transition led to an end state."""
        return self._ended(agent_id, "terminated")

    def is_truncated(self, agent_id: Any = LONE_AGENT) -> bool:
        """Whether the agent was cut off with its last transition."""
        return self._ended(agent_id, "truncated")

    def is_done(self, agent_id: Any = LONE_AGENT) -> bool:
        """Whether the agent's last transition was the last one."""
        return self.is_terminated(agent_id) or self.is_truncated(agent_id)

    def last_info_for(self, agent_id: Any = LONE_AGENT) -> Mapping[str, Any] | None:
        """What the env last said beside to the agent; None if it said nothing yet."""
        slot = self.slots.get(agent_id) if self.has_begun else None
        if slot is None or self._kept is not None:
            return self._infos.get(agent_id)
        return self._slots.info_of(slot)

    def keep(self) -> None:
        """Hold on to what is counted by now: it is over, and others will have its slots."""
        if self._kept is None:
            self._steps, self._infos = self.total_env_steps, {agent: self.last_info_for(agent) for agent in self.slots}
            self._kept = {name: self._each(name) for name in _SUMS}

    def hand_out(self, agent_steps: int) -> None:
        """Count transitions that are handed out."""
        self._handed_out += agent_steps

    def __repr__(self) -> str:
        n_agents, reward = len(self.slots), self.total_reward
        where = f"{self.episode_id} of env {self.env_id}"
        return f"<Episode {where}: {self.length} steps, {n_agents} agents, reward {reward:.6g}>"

    def _each(self, name: str) -> list[Any]:
        """A field of each agent's record."""
        if self._kept is not None:
            return self._kept[name]
        column = self._slots.fields[name]
        return [column.item(slot) for slot in self.slots.values()]

    def _ended(self, agent_id: Any, how: str) -> bool:
        return agent_id in self.slots and self._each(how)[self.agent_index(agent_id)]
