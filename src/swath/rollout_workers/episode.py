"""An episode as callbacks, mapping functions and policies see it, over the sums of its agents' slots.

Rows of steps are not kept: an episode of any length takes the same room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from swath.rollout_workers.sampling.slots import Slots, records_at

LONE_AGENT = "agent0"
"""The agent of an env that knows of none."""

MappingFn = Callable[..., str]
"""`f(agent_id, episode, worker=worker)`: the id of the policy that acts for the agent."""


class Episode:
    """One episode of one sub-env: who acts in it by which policy, and its running sums, current whenever read.

    Args:
        episode_id: unique over workers and lives.
        env_id: the sub-env, by its number within the worker.
        slots: of its agents.
        policy_map: the policies by id.
        policy_mapping_fn: asked once per agent; what it answers holds for the episode.
        worker: the worker in which it runs.

    Attributes:
        custom_metrics: numbers to be reported with the episode, by name.
        user_data: whatever callbacks want to keep until its end.
        hist_data: lists of numbers to be reported with the episode, by name.
        media: whatever else is to be reported with it.
        has_begun: whether the sub-env was reset; that is yet to come when `on_episode_created` is called.
        slots: those of its agents, in the order of their appearance.
    """

    def __init__(
        self,
        episode_id: int,
        env_id: int,
        slots: Slots,
        *,
        policy_map: Mapping[str, Any],
        policy_mapping_fn: MappingFn,
        worker: Any = None,
    ) -> None:
        self.episode_id = episode_id
        self.env_id = env_id
        self.policy_map = policy_map
        self.policy_mapping_fn = policy_mapping_fn
        self.worker = worker
        self.custom_metrics: dict[str, Any] = {}
        self.user_data: dict[str, Any] = {}
        self.hist_data: dict[str, list[Any]] = {}
        self.media: dict[str, Any] = {}
        self.has_begun = False
        self.slots: dict[Any, int] = {}
        self._all: Slots | None = slots
        self._table, self._steps = slots.table, 0
        self._said: Mapping[Any, Mapping[str, Any]] = {}
        self._policies: dict[Any, str] = {}
        self._indices: dict[Any, int] = {}

    @property
    def length(self) -> int:
        """Env steps made; -1 before the reset."""
        return self.total_env_steps if self.has_begun else -1

    @property
    def total_env_steps(self) -> int:
        """Env steps made."""
        return self._steps if self._all is None else int(self._all.lengths[self.env_id])

    @property
    def total_agent_steps(self) -> int:
        """Transitions of all agents."""
        return sum(self._each("count"))

    @property
    def active_env_steps(self) -> int:
        """Env steps that were not handed out in a batch yet."""
        return 0 if self._all is None else self._all.waiting(self.env_id, self.episode_id)[0]

    @property
    def active_agent_steps(self) -> int:
        """Transitions that were not handed out in a batch yet."""
        return 0 if self._all is None else self._all.waiting(self.env_id, self.episode_id)[1]

    @property
    def total_reward(self) -> float:
        """The sum over all agents and steps, after reward clipping."""
        return sum(self._each("total"), 0.0)

    @property
    def raw_reward(self) -> float:
        """The same before reward clipping."""
        return sum(self._each("raw"), 0.0)

    @property
    def agent_rewards(self) -> dict[tuple[Any, str], float]:
        """The sum of rewards by (agent, policy), of agents that have made a transition."""
        sums = zip(self.slots, self._each("count"), self._each("total"), strict=True)
        return {(agent, self.policy_for(agent)): total for agent, count, total in sums if count}

    def policy_for(self, agent_id: Any = LONE_AGENT) -> str:
        """The id of the policy that acts for this agent in this episode, also if it was removed meanwhile.

        Raises:
            KeyError: the mapping function answered with an id that no policy has.
        """
        if agent_id not in self._policies:
            self._policies[agent_id] = self._asked_for(agent_id)
        return self._policies[agent_id]

    def get_agents(self) -> list[Any]:
        """The agents that have appeared, in that order."""
        return list(self._indices)

    def agent_index(self, agent_id: Any) -> int:
        """The agent's place in the order of appearance; one that is new has just appeared."""
        return self._indices.setdefault(agent_id, len(self._indices))

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
        said = self._said if self._all is None else self._all.said(self.env_id) if self.has_begun else {}
        return said.get(agent_id)

    def keep(self) -> list[int]:
        """Hold on to what is counted by now: another episode is about to begin; the slots that are free then."""
        if self._all is None:
            return []
        self._steps, self._said, gone = self.total_env_steps, self._all.said(self.env_id), [*self.slots.values()]
        self._table = records_at(self._all.table, np.array(gone, np.int64))
        self.slots = {agent: i for i, agent in enumerate(self.slots)}
        self._all = None
        return gone

    def __repr__(self) -> str:
        return (
            f"<Episode {self.episode_id} of env {self.env_id}: {self.length} steps, "
            f"{len(self._indices)} agents, reward {self.total_reward:.6g}>"
        )

    def _each(self, name: str) -> list[Any]:
        """A field of each agent's record."""
        table = self._table if self._all is None else self._all.table
        field = table[name]
        return [field[slot].item() for slot in self.slots.values()]

    def _ended(self, agent_id: Any, how: str) -> bool:
        return agent_id in self.slots and bool(self._each(how)[[*self.slots].index(agent_id)])

    def _asked_for(self, agent_id: Any) -> str:
        policy_id = self.policy_mapping_fn(agent_id, self, worker=self.worker)
        if policy_id not in self.policy_map:
            raise KeyError(
                f"policy_mapping_fn gave {policy_id!r} for agent {agent_id!r}; there are {sorted(self.policy_map)}"
            )
        return policy_id
