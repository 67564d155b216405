"""Envs of several agents each, who come and go: their observations are sorted by policy, their slots taken and left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from swath.rollout.hosts.base import ArrayHost
from swath.rollout.hosts.gymnasium import ALL, INFOS, REWARDS, TERMINATEDS, TRUNCATEDS, ByAgent
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.episode import Episode
from swath.rollout_workers.hosts.slot_host import SlotHost
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.policy_rows import NONE, PolicyRows
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


class ManyAgents(SlotHost):
    """Envs of several agents each, who come and go: the only place in which their dicts are read and made."""

    def __init__(self, inner: ArrayHost, slots: Slots, laps: PerfStats, announce: Callable[[int], None]) -> None:
        super().__init__(inner, slots, laps, announce)
        n = self.spec.num_envs
        self._raw = [[{}] * n]  # type: ignore[list-item]
        self._said: list[dict[Any, Any]] = [{} for _ in range(n)]
        self._acting: list[dict[Any, int]] = [{} for _ in range(n)]
        self._shown = [_NOBODY] * n
        self._sorted: tuple[list[int], list[tuple[PolicyRows, Array, Array]]] = [], []

    def enter(self, env: int, episode: Episode) -> None:
        """Agents get slots as they are seen."""
        self.slots.begin(env, episode)
        self._said[env], self._acting[env], self._shown[env] = {}, {}, _NOBODY

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

    def said(self, env: int) -> Mapping[Any, Mapping[str, Any]]:
        """What the env said last to each agent."""
        return self._said[env]

    def _own(self, info: Mapping[Any, Any], agent: Any) -> Mapping[str, Any]:
        own: Mapping[str, Any] = info.get(agent, {})
        return own

    def _act(self) -> Leaves:
        """One leaf: actions by agent, one dict per env; policies are asked in the order in which they come first."""
        slots, dealt = self.slots, [dict[Any, Any]() for _ in self._shown]
        for policy, _, ids in self._by_policy([*chain.from_iterable(shown.due for shown in self._shown)]):
            actions = self._asked(policy, ids)
            single = policy.split(actions)
            for env, agent, action in zip(slots.fields["env"][ids].tolist(), slots.agents[ids], single, strict=True):
                dealt[env][agent] = action
            self._laps.lap("action_processing")
        return [dealt]

    def _observe(self, envs: Array, infos: Any) -> dict[int, Exception]:
        failed: dict[int, Exception] = {}
        values, seen = list[Any](), list[int]()
        said: list[Mapping[Any, Any]] = [{}] * len(self._shown)
        for env in envs.tolist():
            if infos is None:
                self.enter(env, self.slots.episode(env))  # without agents that were seen in a reset that failed
            said[env] = self.inner.info_of(env)
            answer = {**_BEGUN, INFOS: said[env]} if infos is None else infos[env]
            try:
                values += self._look(env, self._raw[0][env], answer)
                seen += self._shown[env].seen
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed[env] = error
        self.slots.fields["step"][seen] = self.slots.steps
        if any(any(each.values()) for each in said):
            self.slots.infos[self.slots.steps] = said
        for policy, where, ids in self._by_policy(seen):
            failed |= self._keep(policy, ids, [values[i] for i in where.tolist()])
        return failed

    def _look(self, env: int, returned: ByAgent, answer: Mapping[str, ByAgent]) -> Iterable[Any]:
        """Find the slots of the agents that an env shows: their observations.

        Raises:
            KeyError: the mapping function gave an unknown id.
            ValueError: the episode is over, and nobody has acted.
        """
        terminateds, truncateds, rewards = answer[TERMINATEDS], answer[TRUNCATEDS], answer[REWARDS]
        self._said[env].update(answer[INFOS])
        flagged = [agent for flags in (terminateds, truncateds) for agent in flags if flags[agent]]
        usual = self._shown[env]
        if not flagged and usual.agents and list(returned) == usual.agents:
            self._shown[env] = Shown(usual.agents, usual.seen, usual.seen, {}, rewards)
            return returned.values()
        episode, acting, over = self.slots.episode(env), self._acting[env], terminateds[ALL] or truncateds[ALL]
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
        if over and (of["acted"][everybody] == NONE).all() and not of["count"][everybody].any():
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

    def _keep(self, policy: PolicyRows, ids: Array, values: list[Any]) -> dict[int, Exception]:
        """Keep observations of a policy's agents; the envs that failed by it."""
        envs, failed = self.slots.fields["env"][ids], dict[int, Exception]()
        try:
            raw = policy.packed(values)
        except Exception:  # noqa: BLE001  each row is tried alone
            for env, value in zip(envs.tolist(), values, strict=True):
                try:
                    policy.packed([value])
                except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                    failed[env] = error
            good = np.flatnonzero(~np.isin(envs, [*failed])).tolist()
            return failed | (self._keep(policy, ids[good], [values[i] for i in good]) if good else {})
        try:
            self.slots.fields["row"][ids] = policy.observe(raw)
        except Exception as error:  # noqa: BLE001  likewise
            return dict.fromkeys(envs.tolist(), error)
        return failed

    def _by_policy(self, slots: list[int]) -> list[tuple[PolicyRows, Array, Array]]:
        """The policies of these slots in order of first appearance, where their slots are in the list, and which."""
        if slots != self._sorted[0]:
            ids = np.array(slots, np.int64)
            numbers = self.slots.fields["policy"][ids]
            found = [(number, np.flatnonzero(numbers == number)) for number in dict.fromkeys(numbers.tolist())]
            self._sorted = slots, [(self.slots.policies[number], where, ids[where]) for number, where in found]
        return self._sorted[1]
