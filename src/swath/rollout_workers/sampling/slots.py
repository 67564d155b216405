"""The agents that act in B envs, the transitions that wait to be handed out, and the progress of each env.

    slot         an agent in an env: one record with its latest observation, the one it acted on, and its sums
    transition   a copy of the record of its slot at its end; k of them are appended at once

Records refer to rows of observations and answers of their policy.

    steps made       ▇▇▇▇▇▇▇▇▇▇▇▇│▇▇▇         │ the cut: transitions before it go into the next batch
                     handed out▲                the place of a transition is the step that ended it

An `Episode`, as callbacks and policies see it, shows the sums of its agents' slots: its memory does not grow with its
length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swath.rollout.loop import Step
from swath.rollout.spaces import Array
from swath.rollout_workers.sampling.policy_rows import ANSWER_ROWS, NONE, OBSERVATION_ROWS, PolicyRows

# Fields of its agents' slots that an episode keeps when it is over.
_SUMS = "before", "total", "clipped", "terminated", "truncated"

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
        slots: by agent, in order of appearance.
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
        """Return the number of env steps; -1 before the reset."""
        return self.total_env_steps if self.has_begun else -1

    @property
    def total_env_steps(self) -> int:
        """Return the number of env steps."""
        return self._slots.length(self.env_id) if self._kept is None else self._steps

    @property
    def total_agent_steps(self) -> int:
        """Return the number of transitions of all agents."""
        return self._handed_out + self.active_agent_steps

    @property
    def active_env_steps(self) -> int:
        """Return the number of env steps that were not handed out yet, while the episode runs."""
        return self._slots.waiting(self)

    @property
    def active_agent_steps(self) -> int:
        """Return the number of transitions that were not handed out yet."""
        return int(np.count_nonzero(self._slots.transitions["episode"] == self.episode_id))

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
        sums = zip(self.slots, self._read_each("before"), self._read_each("total"), strict=True)
        return {(agent, self.policy_for(agent)): total for agent, before, total in sums if before != NONE}

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
        slot = self.slots.get(agent_id) if self.has_begun else None
        if slot is None or self._kept is not None:
            return self._infos.get(agent_id)
        return self._slots.info_of(slot)

    def keep(self) -> None:
        """Store the sums: the episode is over, and its slots will be used by others."""
        if self._kept is None:
            self._steps, self._infos = self.total_env_steps, {agent: self.last_info_for(agent) for agent in self.slots}
            self._kept = {name: self._read_each(name) for name in _SUMS}

    def count_handed_out(self, agent_steps: int) -> None:
        """Count transitions that are handed out."""
        self._handed_out += agent_steps

    def __repr__(self) -> str:
        n_agents, reward = len(self.slots), self.total_reward
        place = f"{self.episode_id} of env {self.env_id}"
        return f"<Episode {place}: {self.length} steps, {n_agents} agents, reward {reward:.6g}>"

    def _read_each(self, name: str) -> list[Any]:
        """Return a field of each agent's record."""
        if self._kept is not None:
            return self._kept[name]
        column = self._slots.fields[name]
        return [column.item(slot) for slot in self.slots.values()]

    def _has_flag(self, agent_id: Any, flag: str) -> bool:
        return agent_id in self.slots and self._read_each(flag)[self.agent_index(agent_id)]


# Fields of a slot; of a transition, as they were at its end.
#     env, episode, agent, policy    episode by trajectory id, agent by place in the order of appearance, policy by the
#                                    number of its `PolicyRows`, NONE where the slot is free
#     start, clock                   steps that the env had made when the episode began, and before the transition,
#                                    without discarded ones
#     row, acted                     rows of its latest observation, and of the one acted on
#     answer, before                 rows of the answer to the observation acted on, and of the answer before
#     version                        of the weights that acted
#     pending_reward                 rewards since the last transition, which become part of the next
#     total, clipped                 sum of rewards after clipping; what clipping has taken away from it
#     reward, prev_reward            of the latest transition, after clipping; of the one before
_INTEGERS = "env", "episode", "agent", "policy", "start", "clock", "row", "acted", "answer", "before", "version"
_KINDS = (
    (np.int64, _INTEGERS),
    (np.float64, ("pending_reward", "total", "clipped", "reward", "prev_reward")),
    (np.bool_, ("terminated", "truncated")),
)
SLOT = np.dtype([(name, kind) for kind, names in _KINDS for name in names], align=True)


@dataclass(frozen=True)
class Quota:
    """When a batch is complete.

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
    def of(cls, config: Any, worker_index: int, num_envs: int, *, many_agents: bool) -> Quota:
        """Read the quota from the present `AlgorithmConfig`.

        Raises:
            ValueError: `num_envs_per_env_runner` is larger than the number of sub-envs.
        """
        wanted, whole_episodes = config.num_envs_per_env_runner, config.batch_mode == "complete_episodes"
        if wanted > num_envs:
            raise ValueError(f"num_envs_per_env_runner={wanted}, but the vector env has {num_envs} sub-envs")
        by_agents = many_agents and config.count_steps_by == "agent_steps"
        return cls(config.get_rollout_fragment_length(worker_index), wanted, whole_episodes, by_agents)


class Slots:
    """The agents of B envs that act now, and the transitions that were not handed out yet.

    Args:
        worker: its policies act.
        num_envs: B.

    Attributes:
        table: one record per slot.
        fields: its fields by name.
        agents: ids of the agents, by slot.
        policies: by the numbers by which slots refer to them.
        episodes: the running one of each env.
        known: by id, the episodes that are running or have transitions here.
        version: of the weights that act.
        clocks: int64 `[B]`, steps that each env has made, without discarded ones.
        episode_starts: int64 `[B]`, clocks at the start of the running episodes.
        handed_out: int64 `[B]`, clocks up to which steps were handed out.
        over: int64 `[B]`, clocks up to which steps belong to episodes that ended by themselves.
    """

    def __init__(self, worker: Any, num_envs: int) -> None:
        self._worker, self.agents = worker, np.empty(num_envs, object)
        self._use_table(np.zeros(num_envs, SLOT), 0)
        self.policies: dict[int, PolicyRows] = {}
        self._explore: bool | None = None
        self.episodes: list[Episode | None] = [None] * num_envs
        self.known: dict[int, Episode] = {}
        self.version = 0
        self.clocks, self.episode_starts, self.handed_out, self.over = np.zeros((4, num_envs), np.int64)
        self._free = list(range(num_envs))[::-1]
        self._room, self._count = _words(np.zeros(1024, SLOT)), 0

    @property
    def transitions(self) -> Array:
        """Return the transitions, one record each, in the order in which they ended; they may be written to."""
        return _records(self._room[: self._count])

    def rows_of(self, policy_id: str) -> PolicyRows:
        """Return the rows of the policy that has this id now."""
        for rows in self.policies.values():
            if rows.policy_id == policy_id:
                return rows
        number = max(self.policies, default=-1) + 1
        rows = self.policies[number] = PolicyRows(self._worker, policy_id, number)
        rows.prepare(self._explore)
        return rows

    def prepare(self, version: int, explore: bool | None) -> None:
        """Set the version of the weights, and whether actions are sampled; None: by the settings of each policy."""
        self.version, self._explore = version, explore
        for rows in self.policies.values():
            rows.prepare(explore)

    def episode(self, env: int) -> Episode:
        """Return the running or next episode of an env."""
        episode = self.episodes[env]
        assert episode is not None
        return episode

    def length(self, env: int) -> int:
        """Return the steps of the running episode of an env."""
        return int(self.clocks[env] - self.episode_starts[env])

    def info_of(self, slot: int) -> Mapping[str, Any] | None:
        """Return the last info of a slot's agent; None if its policy was replaced."""
        rows = self.policies.get(self.fields["policy"].item(slot))
        return None if rows is None else rows.info_at(self.fields["row"].item(slot))

    def begin(self, env: int, episode: Episode) -> None:
        """Begin an episode, or begin it again; free the slots of the previous agents."""
        previous = self.episodes[env]
        if previous is not None:
            if previous is not episode:
                previous.keep()
            for slot in reversed(previous.slots.values()):
                self.fields["policy"][slot] = NONE
                self._free.append(slot)
        episode.slots.clear()
        self.episodes[env] = self.known[episode.episode_id] = episode
        self.episode_starts[env] = self.clocks[env]

    def take(self, episode: Episode, agent: Any, policy: int) -> int:
        """Take a slot for an agent that has just appeared."""
        if not self._free:
            n = len(self.table)
            self._use_table(np.concatenate([self.table, np.zeros(n, SLOT)]), n)
            self.agents = np.concatenate([self.agents, np.empty(n, object)])
            self._free = list(range(n, 2 * n))[::-1]
        slot, env, fields = self._free.pop(), episode.env_id, self.fields
        self._words[slot], self.agents[slot] = _BLANK, agent
        fields["env"][slot], fields["episode"][slot] = env, episode.episode_id
        fields["agent"][slot], fields["policy"][slot] = len(episode.slots), policy
        fields["start"][slot] = self.episode_starts[env]
        episode.slots[agent] = slot
        return slot

    def close(self, ids: Array | slice, raw: Array) -> None:
        """Append the transitions that end with this step in these slots, with rewards before clipping."""
        fields, stop, reward = self.fields, self._count, raw
        for number, policy in self.policies.items():
            if policy.clip is not None:
                reward = np.where(fields["policy"][ids] == number, policy.clip(raw), reward)
        if reward is not raw:
            fields["clipped"][ids] += raw - reward
        fields["total"][ids] += reward
        fields["reward"][ids], fields["clock"][ids] = reward, self.clocks[fields["env"][ids]]
        added = self._words[ids] if isinstance(ids, slice) else self._words.take(ids, axis=0)
        self._count += len(added)
        if self._count > len(self._room):
            self._room = np.concatenate([self._room, np.zeros_like(self._room), added])
        self._room[stop : self._count] = added
        fields["before"][ids], fields["prev_reward"][ids] = fields["answer"][ids], reward

    def count(self, step: Step) -> None:
        """Count a step of all envs except those whose rows are void."""
        self.clocks += 1
        if step.void:
            self.clocks[list(step.void)] -= 1

    def truncate(self, env: int) -> None:
        """Truncate the running episode of an env at the last transition of each agent."""
        transitions = self.transitions
        rows = np.flatnonzero(transitions["episode"] == self.episode(env).episode_id)
        last = [*dict(zip(transitions["agent"][rows].tolist(), rows.tolist(), strict=True)).values()]
        transitions["truncated"][last] |= ~transitions["terminated"][last]

    def discard(self, env: int) -> int:
        """Discard what is left of the running episode of an env; return its number of env steps."""
        episode = self.episode(env)
        self.remove(self.transitions["episode"] == episode.episode_id)
        lost = self.waiting(episode)
        self.clocks[env] -= lost
        self.episode_starts[env] -= lost
        return lost

    def remove(self, which: Array) -> Array:
        """Remove and return the transitions for which a bool array `[n]` is true."""
        picked, others = records_at(self.transitions, which), records_at(self.transitions, ~which)
        self._count = len(others)
        self._room[: len(others)] = _words(others)
        return picked

    def waiting(self, episode: Episode) -> int:
        """Return how many env steps of an episode were not handed out yet; 0 if another one runs in its env."""
        env = episode.env_id
        if self.episodes[env] is not episode:
            return 0
        return min(self.length(env), int(self.clocks[env] - self.handed_out[env]))

    def missing(self, quota: Quota) -> int:
        """Return how many more steps are needed at least."""
        if quota.whole_episodes or quota.by_agents:
            return 1
        waiting = int((self.clocks - self.handed_out).sum())
        return max(1, -((waiting - quota.length * quota.fragments) // len(self.clocks)))

    def cuts(self, quota: Quota) -> Array | None:
        """Return up to where each env is handed out, once there is enough."""
        if quota.whole_episodes or quota.by_agents:
            cuts = self.over.copy() if quota.whole_episodes else self.clocks.copy()
            n_steps = self._before(cuts).sum() if quota.by_agents else (cuts - self.handed_out).sum()
            return cuts if n_steps >= quota.length * quota.fragments else None
        cuts, ready = self.handed_out.copy(), (self.clocks - self.handed_out) // quota.length
        if ready.sum() < quota.fragments:
            return None
        for _ in range(quota.fragments):  # from the envs with the fewest steps handed out
            env = min(np.flatnonzero(ready).tolist(), key=cuts.__getitem__)
            cuts[env] += quota.length
            ready[env] -= 1
        return cuts

    def hand_out(self, cuts: Array) -> tuple[Array, int]:
        """Remove and return the transitions before the cuts, and their number of env steps."""
        env_steps = int((cuts - self.handed_out).sum())
        transitions = self.remove(self._before(cuts))
        episodes, n_transitions = np.unique(transitions["episode"], return_counts=True)
        for episode_id, n in zip(episodes.tolist(), n_transitions.tolist(), strict=True):
            self.known[episode_id].count_handed_out(n)
        self.handed_out, self.over = cuts, np.maximum(self.over, cuts)
        return transitions, env_steps

    def make_room(self) -> None:
        """Delete rows, episodes and removed policies that are no longer referred to."""
        for number, rows in [*self.policies.items()]:
            records = [(table, table["policy"] == number) for table in (self.table, self.transitions)]
            if rows.policy_id in self._worker.policy_map or any(mask.any() for _, mask in records):
                rows.keep(records)
            else:
                del self.policies[number]
        running = {episode.episode_id for episode in self.episodes if episode is not None}
        for episode_id in self.known.keys() - running - {*self.transitions["episode"].tolist()}:
            del self.known[episode_id]

    def _use_table(self, table: Array, n_taken: int) -> None:
        """Use this table, of which the first `n_taken` slots are taken."""
        self.table, self._words = table, _words(table)
        self.fields = {name: table[name] for name in SLOT.names or ()}
        self.fields["policy"][n_taken:] = NONE

    def _before(self, cuts: Array) -> Array:
        before: Array = self.transitions["clock"] < cuts[self.transitions["env"]]
        return before


def _blank() -> Array:
    """Return the memory of the record of an agent that was not observed yet."""
    record = np.zeros(1, SLOT)
    for name in (*OBSERVATION_ROWS, *ANSWER_ROWS):
        record[name] = NONE
    memory: Array = _words(record)[0]
    return memory


def _words(records: Array) -> Array:
    """Return the memory of records, int64 `[n, words]`, which NumPy copies ten times faster than records."""
    return records.view(np.int64).reshape(len(records), SLOT.itemsize // 8)


def _records(words: Array) -> Array:
    return words.view(SLOT).reshape(len(words))


def records_at(records: Array, which: Array) -> Array:
    """Return copies of records, by number or by a mask."""
    index = which.nonzero()[0] if which.dtype == np.bool_ else which
    return _records(_words(records).take(index, axis=0))


_BLANK = _blank()
