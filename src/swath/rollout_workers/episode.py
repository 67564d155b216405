"""Slots, each of which is an agent in an env; transitions; and episodes as callbacks and policies see them.

A record refers to rows of what its policy has seen and answered: the observation of the moment, the one acted on, and
the one acted on before. So a transition is a few numbers, the record of its slot at its end, and k of them are appended
at once. An episode shows the sums of its agents' slots: one of any length takes the same room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from swath.rollout.spaces import Array

LONE_AGENT = "agent0"
"""The agent of an env that knows of none."""

MappingFn = Callable[..., str]
"""`f(agent_id, episode, worker=worker)`: the id of the policy that acts for the agent."""

NONE = -1
"""In the place of a row or a policy: there is none."""

SLOT = np.dtype(
    [
        ("env", np.int64),
        ("episode", np.int64),  # trajectory id
        ("agent", np.int64),  # place in the order of appearance
        ("policy", np.int64),  # number of its `PolicyRows`; NONE where the slot is free
        ("clock", np.int64),  # of a transition: steps that the env had made before, without discarded ones
        ("t", np.int64),  # of a transition: steps of the episode before
        ("step", np.int64),  # number of the step or reset in which the agent was last seen
        ("row", np.int64),  # its latest observation; of a transition: the one that it led to
        ("acted", np.int64),  # the observation that it acted on, if nothing came of it yet
        ("before", np.int64),  # the one that it acted on in the transition before
        ("version", np.int64),  # of the weights that acted
        ("count", np.int64),  # transitions of the agent in the episode
        ("unpaid", np.float64),  # rewards that are still to become part of a transition
        ("total", np.float64),  # sum of rewards after clipping
        ("raw", np.float64),  # the same before
        ("reward", np.float32),  # of a transition: after clipping
        ("paid", np.float32),  # that of the transition before
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("over", np.bool_),  # the agent neither acts nor is looked at any more
    ],
    align=True,
)

_BEGUN = tuple(NONE if name in ("row", "acted", "before") else 0 for name in (SLOT.names or ())[4:])
"""The record of an agent that begins to act, behind the four fields that say who it is."""

Which: TypeAlias = Array | slice
"""Slots, by number or by a mask, or all of them."""


class Slots:
    """The agents of N envs that act now, and how far the envs are.

    Args:
        num_envs: N.

    Attributes:
        table: one record per slot.
        agents: their ids.
        episodes: the running one of each env.
        lengths: int64 `[N]`, steps of those.
        clocks: int64 `[N]`, steps that each env has made, without those that were discarded.
        transitions: that were not handed out yet.
        said: what an env said last to each agent of the running episode.
        waiting: how many env steps, and how many transitions, of an episode were not handed out yet.
    """

    said: Callable[[int], Mapping[Any, Mapping[str, Any]]]
    waiting: Callable[[Episode], tuple[int, int]]

    def __init__(self, num_envs: int) -> None:
        self.table = np.zeros(num_envs, SLOT)
        self.table["policy"] = self.table["row"] = NONE
        self.agents = np.empty(num_envs, object)
        self.episodes: list[Episode | None] = [None] * num_envs
        self.lengths, self.clocks = np.zeros((2, num_envs), np.int64)
        self.transitions = Transitions()
        self._free = list(range(num_envs))[::-1]

    def begin(self, env: int, episode: Episode | None) -> list[int]:
        """An episode is about to begin, None if nobody looks at it; the slots of the one before."""
        before = self.episodes[env]
        self.episodes[env] = episode
        gone = [] if before is None else before.keep()
        self.lengths[env] = 0
        return gone

    def leave(self, slots: list[int]) -> None:
        """These slots are free."""
        self.table["policy"][slots] = NONE
        self._free += slots[::-1]

    def take(self, episode: Episode, agent: Any, policy: int) -> int:
        """A slot for an agent that has just appeared."""
        if not self._free:
            n = len(self.table)
            self.table = np.concatenate([self.table, np.zeros(n, SLOT)])
            self.table["policy"][n:] = NONE
            self.agents = np.concatenate([self.agents, np.empty(n, object)])
            self._free = list(range(n, 2 * n))[::-1]
        slot = self._free.pop()
        self.fill(slot, episode.env_id, episode.episode_id, episode.agent_index(agent), policy)
        self.agents[slot] = agent
        episode.slots[agent] = slot
        return slot

    def fill(self, slot: int, env: int, episode: int, place: int, policy: int) -> None:
        """An agent begins to act."""
        self.table[slot] = (env, episode, place, policy, *_BEGUN)


class Transitions:
    """Transitions that were not handed out yet, in the order in which they ended."""

    def __init__(self) -> None:
        self._room = np.zeros(1024, SLOT)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def table(self) -> Array:
        """One record each; to be written into, too."""
        return self._room[: self._count]

    def append(self, records: Array, which: Which = slice(None)) -> None:
        """Add these records."""
        added = _words(records)[which]
        stop = self._count + len(added)
        if stop > len(self._room):
            self._room = np.concatenate([self._room, np.zeros(max(stop, len(self._room)), SLOT)])
        _words(self._room)[self._count : stop] = added
        self._count = stop

    def take(self, which: Array) -> Array:
        """Take those out for which this bool array `[n]` is true."""
        taken, left = records_at(self.table, which), records_at(self.table, ~which)
        self._count = 0
        self.append(left)
        return taken


def _words(records: Array) -> Array:
    """The memory of records, int64 `[n, words]`: NumPy copies it in a tenth of the time that records take."""
    return records.view(np.int64).reshape(len(records), SLOT.itemsize // 8)


def records_at(records: Array, which: Array) -> Array:
    """Copies of records, by number or by a mask."""
    index = which.nonzero()[0] if which.dtype == np.bool_ else which
    return _words(records).take(index, axis=0).view(SLOT).reshape(len(index))


@dataclass(eq=False, repr=False)
class Episode:
    """One episode of one sub-env: who acts in it by which policy, and its running sums, current whenever read.

    Attributes:
        episode_id: unique over workers and lives.
        env_id: the sub-env, by its number within the worker.
        policy_map: the policies by id.
        policy_mapping_fn: asked once per agent; what it answers holds for the episode.
        worker: the worker in which it runs.
        custom_metrics: numbers to be reported with the episode, by name.
        user_data: whatever callbacks want to keep until its end.
        hist_data: lists of numbers to be reported with the episode, by name.
        media: whatever else is to be reported with it.
        has_begun: whether the sub-env was reset; that is yet to come when `on_episode_created` is called.
        slots: those of its agents, in the order of their appearance.
    """

    episode_id: int
    env_id: int
    _running: Slots | None
    policy_map: Mapping[str, Any]
    policy_mapping_fn: MappingFn
    worker: Any = None
    custom_metrics: dict[str, Any] = field(default_factory=dict)
    user_data: dict[str, Any] = field(default_factory=dict)
    hist_data: dict[str, list[Any]] = field(default_factory=dict)
    media: dict[str, Any] = field(default_factory=dict)
    has_begun: bool = False
    slots: dict[Any, int] = field(default_factory=dict)
    _policies: dict[Any, str] = field(default_factory=dict)
    _indices: dict[Any, int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Env steps made; -1 before the reset."""
        return self.total_env_steps if self.has_begun else -1

    @property
    def total_env_steps(self) -> int:
        """Env steps made."""
        return self._steps if self._running is None else int(self._running.lengths[self.env_id])

    @property
    def total_agent_steps(self) -> int:
        """Transitions of all agents."""
        return sum(self._each("count"))

    @property
    def active_env_steps(self) -> int:
        """Env steps that were not handed out in a batch yet."""
        return 0 if self._running is None else self._running.waiting(self)[0]

    @property
    def active_agent_steps(self) -> int:
        """Transitions that were not handed out in a batch yet."""
        return 0 if self._running is None else self._running.waiting(self)[1]

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
            policy_id = self.policy_mapping_fn(agent_id, self, worker=self.worker)
            if policy_id not in self.policy_map:
                known = sorted(self.policy_map)
                raise KeyError(f"policy_mapping_fn gave {policy_id!r} for agent {agent_id!r}; there are {known}")
            self._policies[agent_id] = policy_id
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
        said = self._said if self._running is None else self._running.said(self.env_id) if self.has_begun else {}
        return said.get(agent_id)

    def keep(self) -> list[int]:
        """Hold on to what is counted by now: another episode is about to begin; the slots that are free then."""
        if self._running is None:
            return []
        self._steps, self._said, gone = self.total_env_steps, self._running.said(self.env_id), [*self.slots.values()]
        self._table = records_at(self._running.table, np.array(gone, np.int64))
        self.slots = {agent: i for i, agent in enumerate(self.slots)}
        self._running = None
        return gone

    def __repr__(self) -> str:
        return (
            f"<Episode {self.episode_id} of env {self.env_id}: {self.length} steps, "
            f"{len(self._indices)} agents, reward {self.total_reward:.6g}>"
        )

    def _each(self, name: str) -> list[Any]:
        """A field of each agent's record."""
        table = self._table if self._running is None else self._running.table
        column = table[name]
        return [column[slot].item() for slot in self.slots.values()]

    def _ended(self, agent_id: Any, how: str) -> bool:
        return agent_id in self.slots and bool(self._each(how)[[*self.slots].index(agent_id)])
