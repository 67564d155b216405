"""The loop's actor: observations become rows of policies, and each policy is called once per step, for all its agents.

    LoneAgents   each env has one agent: env i is slot i               arrays [B, …] pass through
    ManyAgents   agents come and go: an observed agent gets a slot     {agent: observation}, sorted by policy

An env whose observations do not fit has failed; if a filter raises, all envs have failed whose observations it got.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from swath.rollout.hosts.base import ArrayHost, Infos
from swath.rollout.hosts.gymnasium import ALL, INFOS, REWARDS, TERMINATEDS, TRUNCATEDS, ByAgent
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.policy_rows import NONE, AgentInfos, PolicyRows
from swath.rollout_workers.sampling.slots import LONE_AGENT, Episode, Slots


class Agents(ABC):
    """The agents of B envs: the loop's actor, whose `look` reads what envs return.

    Args:
        host: the envs.
        slots: the agents that act.
        timer: times the steps.
        announce: called for each env in which an episode has begun, before policies act.
    """

    has_state = True

    def __init__(self, host: ArrayHost, slots: Slots, timer: PerfStats, announce: Callable[[int], None]) -> None:
        self.slots, self._host, self._timer, self._announce = slots, host, timer, announce
        self._all_envs = np.arange(host.spec.num_envs)
        self._started_envs: list[int] = []

    def __call__(self, observation: Leaves) -> Leaves:  # noqa: ARG002  it is in the rows of policies
        """Return actions in the host's form."""
        self._timer.lap("env_wait")
        while self._started_envs:
            self._announce(self._started_envs.pop(0))
        return self._act()

    def begin(self, envs: Sequence[int]) -> None:
        """Note the envs in which episodes have begun; the state of their agents is in their slots."""
        for env in envs:
            episode = self.slots.episode(env)
            if not episode.has_begun:
                episode.has_begun = True
                self._started_envs.append(env)

    def rewind(self) -> None:
        """Raise `RuntimeError`: the envs of rollout workers repeat no step."""
        raise RuntimeError("the steps of a rollout worker are not taken back")

    def look(self, envs: Sequence[int], leaves: Leaves, infos: Infos | None) -> dict[int, Exception]:
        """Keep observations of envs, of a step if there are infos, else of a reset; return errors of failed envs."""
        self._timer.lap("env_wait")
        failed = self._look(envs, leaves, infos)
        self._timer.lap("raw_obs_processing")
        return failed

    @abstractmethod
    def enter(self, env: int, episode: Episode) -> None:
        """Prepare the slots of an episode that is about to begin."""

    @abstractmethod
    def settle(self, step: Step) -> None:
        """Record rewards, ends, and the transitions that end with the step."""

    @abstractmethod
    def _look(self, envs: Sequence[int], leaves: Leaves, infos: Infos | None) -> dict[int, Exception]:
        """Keep observations as `look` does, without timing."""

    @abstractmethod
    def _act(self) -> Leaves:
        """Return actions in the host's form."""

    def _keep(
        self, rows: PolicyRows, ids: Array, read: Callable[[Any], Any], infos: AgentInfos
    ) -> dict[int, Exception]:
        """Keep observations of slots of one policy; return errors of the envs that failed.

        Args:
            rows: of the policy.
            ids: the slots.
            read: returns observations at some positions in `ids`, as the filter takes them; raises if they do not fit.
            infos: of all slots; empty if there are none.
        """
        fields, failed = self.slots.fields, dict[int, Exception]()
        try:
            observations = read(slice(None))
        except Exception:
            envs = fields["env"][ids]
            for position, env in enumerate(envs.tolist()):
                try:
                    read([position])
                except Exception as error:  # noqa: BLE001  it is returned with the others
                    failed[env] = error
            if not failed:
                raise
            good = np.flatnonzero(~np.isin(envs, [*failed]))
            infos = [infos[position] for position in good.tolist()] if infos else infos
            return failed | (self._keep(rows, ids[good], lambda which: read(good[which]), infos) if good.size else {})
        try:
            fields["row"][ids] = rows.observe(observations, infos)
        except Exception as error:  # noqa: BLE001  it is returned
            return dict.fromkeys(fields["env"][ids].tolist(), error)
        return failed

    def _actions_of(self, rows: PolicyRows, ids: Array) -> Leaves:
        """Return the policy's actions, as envs take them, for the latest observations of slots."""
        actions = rows.ask(self.slots, ids)
        self._timer.lap("inference")
        processed = actions if rows.process is None else rows.process(actions)
        self._timer.lap("action_processing")
        return processed


class LoneAgents(Agents):
    """Envs of one agent each, for which one policy acts: env i is slot i, and all act in each step."""

    _rows: PolicyRows

    def enter(self, env: int, episode: Episode) -> None:
        """Take the env's slot, which keeps its latest observation."""
        row, self._rows = self.slots.fields["row"][env], self.slots.rows_of(episode.policy_for())
        self.slots.begin(env, episode)
        slot = self.slots.take(episode, LONE_AGENT, self._rows.number)
        assert slot == env
        self.slots.fields["row"][env] = row

    def settle(self, step: Step) -> None:
        """Record the reward of each env's transition, and close it."""
        fields, ends = self.slots.fields, step.ends
        closing: Array | slice = slice(None)
        if step.void:
            ends, closing = ends.without(step.void), np.delete(self._all_envs, step.void)
        if ends.envs.size:
            fields["terminated"][ends.envs], fields["truncated"][ends.envs] = ends.terminated, ends.truncated
        self.slots.close(closing, step.reward[closing])

    def _look(self, envs: Sequence[int], leaves: Leaves, infos: Infos | None) -> dict[int, Exception]:
        ids, positions = self._all_envs, envs
        if len(envs) < len(ids):
            ids = np.array(envs, np.int64)
            leaves = [leaf.take(ids, axis=0) for leaf in leaves]
        if infos is None:
            infos, positions = [self._host.info_of(env) for env in envs], range(len(envs))
        agent_infos = [*zip(repeat(infos), positions)] if any(infos) else ()
        return self._keep(self._rows, ids, partial(self._rows.select_observations, leaves), agent_infos)

    def _act(self) -> Leaves:
        """Return the actions of all envs, also of envs that will ignore them."""
        return self._actions_of(self._rows, self._all_envs)


class Shown(NamedTuple):
    """What a step or reset of an env has shown of its agents.

    Attributes:
        agents: the observed ones, if none has ended or was left out; else empty.
        observed: slots of the observed agents.
        acting: slots of the agents that act next.
        ends: slots that end, and whether they are terminated and truncated.
        rewards: by agent.
    """

    agents: list[Any]
    observed: list[int]
    acting: list[int]
    ends: Mapping[int, list[bool]]
    rewards: ByAgent


_NOTHING_SHOWN = Shown([], [], [], {}, {})
_RESET_RESULT: dict[str, ByAgent] = {REWARDS: {}, TERMINATEDS: {ALL: False}, TRUNCATEDS: {ALL: False}}


class ManyAgents(Agents):
    """Envs of several agents each, which come and go; only this class reads and builds their dicts."""

    def __init__(self, host: ArrayHost, slots: Slots, timer: PerfStats, announce: Callable[[int], None]) -> None:
        super().__init__(host, slots, timer, announce)
        self._slots_in: list[dict[Any, int]] = [{} for _ in self._all_envs]
        self._shown = [_NOTHING_SHOWN] * len(self._all_envs)
        self._sorted: tuple[list[int], list[tuple[PolicyRows, Array, Array]]] = [], []

    def enter(self, env: int, episode: Episode) -> None:
        """Forget the agents of the last episode; agents get slots when they are observed."""
        self.slots.begin(env, episode)
        self._slots_in[env], self._shown[env] = {}, _NOTHING_SHOWN

    def settle(self, step: Step) -> None:
        """Record rewards, which add up until the agent is observed or ends; drop rewards before its first action."""
        fields, rewarded, rewards = self.slots.fields, list[int](), list[Any]()
        closing, ends = list[int](), dict[int, list[bool]]()
        for env, shown in enumerate(self._shown):
            if env in step.void:
                continue
            if shown.agents and list(shown.rewards) == shown.agents:
                rewarded += shown.observed
                rewards += shown.rewards.values()
            else:
                slots = self.slots.episode(env).slots
                by_slot = {slots[agent]: reward for agent, reward in shown.rewards.items() if agent in slots}
                rewarded += by_slot
                rewards += by_slot.values()
            closing += dict.fromkeys((*shown.observed, *shown.ends)) if shown.ends else shown.observed
            ends |= shown.ends
        ids, amounts = np.array(rewarded, np.int64), np.fromiter(map(float, rewards), np.float64, len(rewards))
        fields["pending_reward"][ids] += np.where(fields["acted"][ids] == NONE, 0, amounts)
        if ends:
            fields["terminated"][[*ends]], fields["truncated"][[*ends]] = np.array([*ends.values()]).T
        closed = np.array(closing, np.int64)
        closed = closed[fields["acted"][closed] != NONE]
        self.slots.close(closed, fields["pending_reward"][closed])
        fields["acted"][closed], fields["pending_reward"][closed] = NONE, 0

    def _act(self) -> Leaves:
        """Return one leaf: actions by agent, one dict per env; policies act in order of first appearance."""
        slots, by_env = self.slots, [dict[Any, Any]() for _ in self._shown]
        for policy, _, ids in self._by_policy([*chain.from_iterable(shown.acting for shown in self._shown)]):
            actions = policy.split(self._actions_of(policy, ids))
            for env, agent, action in zip(slots.fields["env"][ids].tolist(), slots.agents[ids], actions, strict=True):
                by_env[env][agent] = action
            self._timer.lap("action_processing")
        return [by_env]

    def _look(self, envs: Sequence[int], leaves: Leaves, infos: Any) -> dict[int, Exception]:
        failed: dict[int, Exception] = {}
        values, observed, info_by_slot = list[Any](), list[int](), dict[int, Any]()
        for env in envs:
            episode = self.slots.episode(env)
            if infos is None:
                self.enter(env, episode)  # without agents that were observed in a reset that failed
            result: Any = {**_RESET_RESULT, INFOS: self._host.info_of(env)} if infos is None else infos[env]
            try:
                values += self._observe(env, episode, leaves[0][env], result)
                observed += self._shown[env].observed
            except Exception as error:  # noqa: BLE001  it is returned with the others
                failed[env] = error
            for agent, info in result[INFOS].items():
                info_by_slot[episode.slots.get(agent, NONE)] = info
        for policy, positions, ids in self._by_policy(observed):
            read = partial(policy.pack_observations, [values[i] for i in positions.tolist()])
            agent_infos = [([info_by_slot.get(slot, {})], 0) for slot in ids.tolist()] if info_by_slot else ()
            failed |= self._keep(policy, ids, read, agent_infos)
        return failed

    def _observe(self, env: int, episode: Episode, returned: ByAgent, result: Mapping[str, ByAgent]) -> Iterable[Any]:
        """Find or take the slots of the agents that an env shows; return their observations.

        Raises:
            KeyError: the mapping function gave an unknown id.
            ValueError: the episode is over, and no agent has acted.
        """
        terminateds, truncateds, rewards = result[TERMINATEDS], result[TRUNCATEDS], result[REWARDS]
        flagged = [agent for flags in (terminateds, truncateds) for agent in flags if flags[agent]]
        last = self._shown[env]
        if not flagged and last.agents and list(returned) == last.agents:
            self._shown[env] = Shown(last.agents, last.observed, last.observed, {}, rewards)
            return returned.values()
        slots, over = self._slots_in[env], terminateds[ALL] or truncateds[ALL]
        ended = [*(slots if over else dict.fromkeys(flagged))]
        observed, acting, values = list[int](), list[int](), []
        for agent, observation in returned.items():
            has_ended = over or agent in ended
            if agent not in slots:
                if has_ended or agent in episode.slots:
                    continue
                rows = self.slots.rows_of(episode.policy_for(agent))
                slots[agent] = self.slots.take(episode, agent, rows.number)
                self._sorted = [], []
            observed.append(slots[agent])
            values.append(observation)
            if not has_ended:
                acting.append(slots[agent])
        all_slots, fields = [*episode.slots.values()], self.slots.fields
        if over and (fields["acted"][all_slots] == NONE).all() and (fields["before"][all_slots] == NONE).all():
            steps = f"{episode.total_env_steps + 1} steps in which no agent was observed to act"
            raise ValueError(f"the episode ended after {steps}; an env must show at least one agent before its end")
        both_flags = terminateds, truncateds
        ends = {
            slots.pop(agent): [bool(flags[ALL] or flags.get(agent)) for flags in both_flags]
            for agent in ended
            if agent in slots
        }
        agents = [] if ends or len(observed) < len(returned) else [*returned]
        self._shown[env] = Shown(agents, observed, acting, ends, rewards)
        return values

    def _by_policy(self, slots: list[int]) -> list[tuple[PolicyRows, Array, Array]]:
        """Sort slots by policy: policies in order of first appearance, positions of their slots, and the slots."""
        if slots != self._sorted[0]:
            ids = np.array(slots, np.int64)
            numbers = self.slots.fields["policy"][ids]
            found = [(number, np.flatnonzero(numbers == number)) for number in dict.fromkeys(numbers.tolist())]
            self._sorted = slots, [(self.slots.policies[number], index, ids[index]) for number, index in found]
        return self._sorted[1]
