"""Envs of several agents each, who come and go: their observations are sorted by policy, their slots taken and left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from swath.rollout.hosts.base import ArrayHost
from swath.rollout.hosts.gymnasium import ALL, INFOS, REWARDS, TERMINATEDS, TRUNCATEDS, ByAgent
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.episode import NONE, Episode
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.agents import Agents
from swath.rollout_workers.sampling.policy_rows import PolicyRows
from swath.rollout_workers.sampling.slots import Slots


class Shown(NamedTuple):
    """What a step or reset of an env has shown of its agents.

    Attributes:
        agents: who was observed, if nobody ended or was left out.
        seen: their slots.
        due: the slots of those who act next.
        ends: slots that end, and whether they are terminated and truncated.
        rewards: by agent.
    """

    agents: list[Any]
    seen: list[int]
    due: list[int]
    ends: Mapping[int, list[bool]]
    rewards: ByAgent


_NOBODY = Shown([], [], [], {}, {})
_BEGUN: dict[str, ByAgent] = {REWARDS: {}, TERMINATEDS: {ALL: False}, TRUNCATEDS: {ALL: False}}


class ManyAgents(Agents):
    """Envs of several agents each, who come and go: the only place in which their dicts are read and made."""

    def __init__(self, host: ArrayHost, slots: Slots, laps: PerfStats, announce: Callable[[int], None]) -> None:
        super().__init__(host, slots, laps, announce)
        self._acting: list[dict[Any, int]] = [{} for _ in self._everyone]
        self._shown = [_NOBODY] * len(self._everyone)
        self._sorted: tuple[list[int], list[tuple[PolicyRows, Array, Array]]] = [], []

    def enter(self, env: int, episode: Episode) -> None:
        """Agents get slots as they are seen."""
        self.slots.begin(env, episode)
        self._acting[env], self._shown[env] = {}, _NOBODY

    def settle(self, step: Step) -> None:
        """Rewards add up until the agent is observed, or ends; what comes before its first action, nobody gets."""
        of, paid, rewards = self.slots.fields, list[int](), list[Any]()
        closing, ends = list[int](), dict[int, list[bool]]()
        for env, shown in enumerate(self._shown):
            if env in step.void:
                continue
            if shown.agents and list(shown.rewards) == shown.agents:
                paid += shown.seen
                rewards += shown.rewards.values()
            else:
                slots = self.slots.episode(env).slots
                known = {slots[agent]: reward for agent, reward in shown.rewards.items() if agent in slots}
                paid += known
                rewards += known.values()
            closing += dict.fromkeys((*shown.seen, *shown.ends)) if shown.ends else shown.seen
            ends |= shown.ends
        ids, amounts = np.array(paid, np.int64), np.fromiter(map(float, rewards), np.float64, len(rewards))
        of["unpaid"][ids] += np.where(of["acted"][ids] == NONE, 0, amounts)
        if ends:
            of["terminated"][[*ends]], of["truncated"][[*ends]] = np.array([*ends.values()]).T
        moved = np.array(closing, np.int64)
        moved = moved[of["acted"][moved] != NONE]
        self.slots.close(moved, of["unpaid"][moved])
        of["acted"][moved], of["unpaid"][moved] = NONE, 0

    def _act(self) -> Leaves:
        """One leaf: actions by agent, one dict per env; policies are asked in the order in which they come first."""
        slots, dealt = self.slots, [dict[Any, Any]() for _ in self._shown]
        for policy, _, ids in self._by_policy([*chain.from_iterable(shown.due for shown in self._shown)]):
            actions = self._ask(policy, ids)
            single = policy.split(actions)
            for env, agent, action in zip(slots.fields["env"][ids].tolist(), slots.agents[ids], single, strict=True):
                dealt[env][agent] = action
            self._laps.lap("action_processing")
        return [dealt]

    def _look(self, envs: Sequence[int], leaves: Leaves, infos: Any) -> dict[int, Exception]:
        failed: dict[int, Exception] = {}
        values, seen, told = list[Any](), list[int](), dict[int, Any]()
        for env in envs:
            episode = self.slots.episode(env)
            if infos is None:
                self.enter(env, episode)  # without agents that were seen in a reset that failed
            answer: Any = {**_BEGUN, INFOS: self._host.info_of(env)} if infos is None else infos[env]
            try:
                values += self._seen(env, episode, leaves[0][env], answer)
                seen += self._shown[env].seen
            except Exception as error:  # noqa: BLE001  it leaves with the others
                failed[env] = error
            for agent, info in answer[INFOS].items():
                told[episode.slots.get(agent, NONE)] = info
        for policy, where, ids in self._by_policy(seen):
            read = partial(policy.packed, [values[i] for i in where.tolist()])
            said = [([told.get(slot, {})], 0) for slot in ids.tolist()] if told else ()
            failed |= self._keep(policy, ids, read, said)
        return failed

    def _seen(self, env: int, episode: Episode, returned: ByAgent, answer: Mapping[str, ByAgent]) -> Iterable[Any]:
        """Find the slots of the agents that an env shows: their observations.

        Raises:
            KeyError: the mapping function gave an unknown id.
            ValueError: the episode is over, and nobody has acted.
        """
        terminateds, truncateds, rewards = answer[TERMINATEDS], answer[TRUNCATEDS], answer[REWARDS]
        flagged = [agent for flags in (terminateds, truncateds) for agent in flags if flags[agent]]
        usual = self._shown[env]
        if not flagged and usual.agents and list(returned) == usual.agents:
            self._shown[env] = Shown(usual.agents, usual.seen, usual.seen, {}, rewards)
            return returned.values()
        acting, over = self._acting[env], terminateds[ALL] or truncateds[ALL]
        ended = [*(acting if over else dict.fromkeys(flagged))]
        seen, due, values = list[int](), list[int](), []
        for agent, observation in returned.items():
            has_ended = over or agent in ended
            if agent not in acting:
                if has_ended or agent in episode.slots:
                    continue
                rows = self.slots.rows_of(episode.policy_for(agent))
                acting[agent] = self.slots.take(episode, agent, rows.number)
                self._sorted = [], []
            seen.append(acting[agent])
            values.append(observation)
            if not has_ended:
                due.append(acting[agent])
        everybody, of = [*episode.slots.values()], self.slots.fields
        if over and (of["acted"][everybody] == NONE).all() and (of["before"][everybody] == NONE).all():
            raise ValueError(
                f"the episode ended after {episode.total_env_steps + 1} steps in which no agent was observed to act; "
                "an env with several agents must observe at least one before its end"
            )
        flags = terminateds, truncateds
        ends = {
            acting.pop(agent): [bool(of_kind[ALL] or of_kind.get(agent)) for of_kind in flags]
            for agent in ended
            if agent in acting
        }
        self._shown[env] = Shown([] if ends or len(seen) < len(returned) else [*returned], seen, due, ends, rewards)
        return values

    def _by_policy(self, slots: list[int]) -> list[tuple[PolicyRows, Array, Array]]:
        """The policies of these slots in order of first appearance, where their slots are in the list, and which."""
        if slots != self._sorted[0]:
            ids = np.array(slots, np.int64)
            numbers = self.slots.fields["policy"][ids]
            found = [(number, np.flatnonzero(numbers == number)) for number in dict.fromkeys(numbers.tolist())]
            self._sorted = slots, [(self.slots.policies[number], where, ids[where]) for number, where in found]
        return self._sorted[1]
