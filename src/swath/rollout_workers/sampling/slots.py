"""The progress of B envs: their episodes, and up to where their steps were handed out.

    steps made       ▇▇▇▇▇▇▇▇▇▇▇▇│▇▇▇         │ the cut: transitions before it go into the next batch
                     handed out▲                the place of a transition is the step that ended it

An `Episode`, as callbacks and policies see it, shows the sums of its agents' slots: its memory does not grow with its
length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.sampling.policy_rows import AGENT, CLOCK, ENV, EPISODE, PolicyRows, labels_of, select

# The agent of an env that knows of none.
LONE_AGENT = "agent0"


@dataclass(eq=False, repr=False)
class Episode:
    """One episode of one sub-env: its agents, their policies, and running sums, which are always current.

    Attributes:
        episode_id: unique over workers and lives.
        env_id: the sub-env, by its number within the worker.
        worker: the worker in which it runs.
        policy_map: the policies by id.
        policy_mapping_fn: `f(agent_id, episode, worker=worker)`, called once per agent; its answer holds for the
            episode.
        custom_metrics: numbers to be reported with the episode, by name.
        user_data: any values that callbacks keep until its end.
        hist_data: lists of numbers to be reported with the episode, by name.
        media: any values to be reported with the episode, by name.
        has_begun: whether the sub-env was reset; false when `on_episode_created` is called.
        slots: by agent, in order of appearance: the rows of its policy, and its slot there.
        n_removed: number of transitions that were handed out, or discarded.
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
    slots: dict[Any, tuple[PolicyRows, int]] = field(default_factory=dict)
    n_removed: int = 0
    _policies: dict[Any, str] = field(default_factory=dict)
    _infos: dict[Any, Any] = field(default_factory=dict)
    _kept: list[Any] | None = None

    @property
    def length(self) -> int:
        """Return the number of env steps; -1 before the reset."""
        return self.total_env_steps if self.has_begun else -1

    @property
    def total_env_steps(self) -> int:
        """Return the number of env steps."""
        return self._slots.length(self.env_id) if self._kept is None else self._steps

    @property
    def total_agent_steps(self) -> int:
        """Return the number of transitions of all agents."""
        return self.n_removed + self.active_agent_steps

    @property
    def active_env_steps(self) -> int:
        """Return the number of env steps that were not handed out yet, while the episode runs."""
        return self._slots.waiting_steps(self)

    @property
    def active_agent_steps(self) -> int:
        """Return the number of transitions that were not handed out yet."""
        return int(sum(self._read_each("n_made"))) - self.n_removed

    @property
    def total_reward(self) -> float:
        """Return the sum of rewards of all agents, after reward clipping."""
        return sum(self._read_each("total"), 0.0)

    @property
    def raw_reward(self) -> float:
        """Return the sum of rewards of all agents, before reward clipping."""
        return sum(self._read_each("clipped"), self.total_reward)

    @property
    def agent_rewards(self) -> dict[tuple[Any, str], float]:
        """Return the sum of rewards by (agent, policy), of agents that have made a transition."""
        sums = zip(self.slots, self._read_each("n_made"), self._read_each("total"), strict=True)
        return {(agent, self.policy_for(agent)): total for agent, n_made, total in sums if n_made}

    def policy_for(self, agent_id: Any = LONE_AGENT) -> str:
        """Return the id of the policy that acts for this agent in this episode, even if it was removed since.

        Raises:
            KeyError: the mapping function answered with an id that no policy has.
        """
        if agent_id not in self._policies:
            policy_id = self.policy_mapping_fn(agent_id, self, worker=self.worker)
            if policy_id not in self.policy_map:
                policy_ids = sorted(self.policy_map)
                raise KeyError(f"policy_mapping_fn gave {policy_id!r} for agent {agent_id!r}; there are {policy_ids}")
            self._policies[agent_id] = policy_id
        return self._policies[agent_id]

    @property
    def is_over(self) -> bool:
        """Return whether the episode has ended."""
        return self._kept is not None

    def get_agents(self) -> list[Any]:
        """Return the agents in order of appearance."""
        return list(self.slots)

    def agent_index(self, agent_id: Any) -> int:
        """Return the agent's place in the order of appearance; the next place for one that has not appeared."""
        return [*self.slots, agent_id].index(agent_id)

    def is_terminated(self, agent_id: Any = LONE_AGENT) -> bool:
        """Return whether the agent's last transition led to an end state."""
        return self._has_flag(agent_id, "terminated")

    def is_truncated(self, agent_id: Any = LONE_AGENT) -> bool:
        """Return whether the agent was cut off with its last transition."""
        return self._has_flag(agent_id, "truncated")

    def is_done(self, agent_id: Any = LONE_AGENT) -> bool:
        """Return whether the agent's last transition was the last one."""
        return self.is_terminated(agent_id) or self.is_truncated(agent_id)

    def last_info_for(self, agent_id: Any = LONE_AGENT) -> Mapping[str, Any] | None:
        """Return the agent's last info; None if there was none yet."""
        if agent_id not in self.slots or not self.has_begun or self._kept is not None:
            return self._infos.get(agent_id)
        rows, slot = self.slots[agent_id]
        return rows.info_of(slot)

    def keep(self) -> None:
        """Store the sums: the episode is over, and its slots will be used by others."""
        if self._kept is None:
            self._steps = self.total_env_steps
            self._infos = {agent: rows.info_of(slot) for agent, (rows, slot) in self.slots.items()}
            self._kept = [rows.table[slot].copy() for rows, slot in self.slots.values()]

    def __repr__(self) -> str:
        n_agents, reward = len(self.slots), self.total_reward
        place = f"{self.episode_id} of env {self.env_id}"
        return f"<Episode {place}: {self.length} steps, {n_agents} agents, reward {reward:.6g}>"

    def _read_each(self, name: str) -> list[Any]:
        """Return a field of each agent's record."""
        if self._kept is not None:
            return [record[name].item() for record in self._kept]
        return [rows.fields[name].item(slot) for rows, slot in self.slots.values()]

    def _has_flag(self, agent_id: Any, flag: str) -> bool:
        return agent_id in self.slots and self._read_each(flag)[self.agent_index(agent_id)]


@dataclass(frozen=True)
class Quota:
    """The size at which a batch is complete.

    Attributes:
        length: F, steps of a fragment.
        fragments: N, number of fragments.
        whole_episodes: not fragments, but at least as many steps in episodes that ended by themselves.
        by_agents: transitions of agents count, not steps of envs.
    """

    length: int
    fragments: int
    whole_episodes: bool
    by_agents: bool

    @classmethod
    def of(cls, envs: Any) -> Quota:
        """Read the quota for envs from the present config of their worker.

        Raises:
            ValueError: `num_envs_per_env_runner` is larger than the number of sub-envs.
        """
        config, wanted = envs.worker.config, envs.worker.config.num_envs_per_env_runner
        if wanted > envs.num_envs:
            raise ValueError(f"num_envs_per_env_runner={wanted}, but the vector env has {envs.num_envs} sub-envs")
        by_agents = envs.has_agents and config.count_steps_by == "agent_steps"
        length = config.get_rollout_fragment_length(envs.worker.worker_index)
        return cls(length, wanted, config.batch_mode == "complete_episodes", by_agents)


class Slots:
    """The episodes of B envs, the policies whose slots act in them, and which transitions are to be handed out.

    Args:
        worker: its policies act.
        num_envs: B.

    Attributes:
        policies: by number.
        episodes: the running or next `Episode` of each env.
        by_id: by id, the episodes that are running or have transitions here.
        clocks: int64 `[B]`, steps that each env has made, without discarded ones.
        episode_starts: int64 `[B]`, clocks at the start of the running episodes.
        handed_out: int64 `[B]`, clocks up to which steps were handed out.
        ended_until: int64 `[B]`, clocks up to which steps belong to episodes that ended by themselves.
        n_steps: room in the next rows of policies.
    """

    def __init__(self, worker: Any, num_envs: int) -> None:
        self._worker, self._version, self.n_steps = worker, 0, 1
        self._explore: bool | None = None
        self.policies: dict[int, PolicyRows] = {}
        self.episodes: list[Any] = [None] * num_envs
        self.by_id: dict[int, Episode] = {}
        self.clocks, self.episode_starts, self.handed_out, self.ended_until = np.zeros((4, num_envs), np.int64)

    def rows_of(self, policy_id: str) -> PolicyRows:
        """Return the rows of the policy that has this id now."""
        for rows in self.policies.values():
            if rows.policy_id == policy_id:
                return rows
        number = max(self.policies, default=-1) + 1
        rows = self.policies[number] = PolicyRows(self._worker, policy_id, number)
        rows.prepare(self._version, self._explore)
        return rows

    def prepare(self, version: int, explore: bool | None) -> None:
        """Set the version of the weights, and whether actions are sampled; None: by the settings of each policy."""
        self._version, self._explore = version, explore
        for rows in self.policies.values():
            rows.prepare(version, explore)

    def length(self, env: int) -> int:
        """Return the steps of the running episode of an env."""
        return int(self.clocks[env] - self.episode_starts[env])

    def begin(self, env: int, episode: Episode) -> None:
        """Begin an episode, or begin it again; free the slots of the previous agents."""
        previous = self.episodes[env]
        if previous is not None:
            if previous is not episode:
                previous.keep()
            for rows, slot in reversed(previous.slots.values()):
                rows.free(slot)
        episode.slots.clear()
        self.episodes[env] = self.by_id[episode.episode_id] = episode
        self.episode_starts[env] = self.clocks[env]

    def add_agent(self, episode: Episode, agent: Any, rows: PolicyRows) -> int:
        """Give an agent that has just appeared a slot, and return it."""
        env = episode.env_id
        slot = rows.open_slot((env, episode.episode_id, len(episode.slots), self.episode_starts[env]), agent)
        episode.slots[agent] = rows, slot
        return slot

    def truncate(self, env: int) -> None:
        """Truncate the running episode of an env at the last transition of each agent."""
        for rows in self.policies.values():
            rows.truncate(self.episodes[env].episode_id)

    def discard(self, env: int) -> int:
        """Discard the rest of the running episode of an env; return its number of env steps."""
        episode = self.episodes[env]
        self.remove(lambda labels: labels[:, EPISODE] == episode.episode_id)
        lost = self.waiting_steps(episode)
        self.clocks[env] -= lost
        self.episode_starts[env] -= lost
        return lost

    def waiting_steps(self, episode: Episode) -> int:
        """Return how many env steps of an episode were not handed out yet; 0 if another one runs in its env."""
        env = episode.env_id
        if self.episodes[env] is not episode:
            return 0
        return min(self.length(env), int(self.clocks[env] - self.handed_out[env]))

    def missing(self, quota: Quota) -> int:
        """Return how many more steps are needed at least."""
        if quota.whole_episodes or quota.by_agents:
            return 1
        n_waiting = int((self.clocks - self.handed_out).sum())
        return max(1, -((n_waiting - quota.length * quota.fragments) // len(self.clocks)))

    def cuts(self, quota: Quota) -> Array | None:
        """Return up to where each env is handed out, once there is enough."""
        if quota.whole_episodes or quota.by_agents:
            cuts = self.ended_until if quota.whole_episodes else self.clocks
            n_steps = (cuts - self.handed_out).sum()
            if quota.by_agents:
                complete = [episode for episode in self.by_id.values() if episode.is_over or not quota.whole_episodes]
                n_steps = sum(episode.active_agent_steps for episode in complete)
            return cuts.copy() if n_steps >= quota.length * quota.fragments else None
        cuts, n_chunks = self.handed_out.copy(), (self.clocks - self.handed_out) // quota.length
        if n_chunks.sum() < quota.fragments:
            return None
        for _ in range(quota.fragments):  # envs with the fewest delivered steps first
            env = min(np.flatnonzero(n_chunks).tolist(), key=cuts.__getitem__)
            cuts[env] += quota.length
            n_chunks[env] -= 1
        return cuts

    def remove(
        self, choose: Callable[[Array], Array], policies: Iterable[PolicyRows] | None = None
    ) -> list[tuple[PolicyRows, Leaves]]:
        """Remove and return, by policy, the transitions for whose labels `[n, …]` a mask is set."""
        chosen = self.policies.values() if policies is None else policies
        parts = [(rows, part) for rows in chosen if (part := rows.remove(choose)) is not None]
        for _, part in parts:
            episodes, n_transitions = np.unique(labels_of(part)[:, EPISODE], return_counts=True)
            for episode_id, n in zip(episodes.tolist(), n_transitions.tolist(), strict=True):
                self.by_id[episode_id].n_removed += n
        return parts

    def hand_out(self, cuts: Array) -> tuple[list[tuple[PolicyRows, Leaves]], int]:
        """Remove the transitions before the cuts; return them by policy, and their number of env steps.

        The transitions of a policy are in order of env, episode, agent and time.
        """
        env_steps = int((cuts - self.handed_out).sum())
        parts = self.remove(lambda labels: labels[:, CLOCK] < cuts[labels[:, ENV]])
        self.handed_out, self.ended_until = cuts, np.maximum(self.ended_until, cuts)
        return [(rows, _sort_rows(part)) for rows, part in parts], env_steps

    def make_room(self) -> None:
        """Delete episodes and removed policies that are no longer referred to."""
        for number, rows in [*self.policies.items()]:
            is_used = rows.policy_id in self._worker.policy_map or rows.joined() is not None
            if not is_used and not any(rows is other for e in self.episodes if e for other, _ in e.slots.values()):
                del self.policies[number]
        running = {episode.episode_id for episode in self.episodes if episode is not None}
        self.by_id = {i: episode for i, episode in self.by_id.items() if i in running or episode.active_agent_steps}


def _sort_rows(part: Leaves) -> Leaves:
    """Return a part, whose rows are in order of time, in order of env, episode, agent and time."""
    labels = labels_of(part)
    order = np.lexsort((labels[:, AGENT], labels[:, EPISODE], labels[:, ENV]))  # stable
    return select(part, order) if (order[1:] < order[:-1]).any() else part
