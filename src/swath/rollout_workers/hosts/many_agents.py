"""Envs of several agents each, who come and go: the only place in which their dicts are read and made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from swath.rollout.hosts.base import ArrayHost
from swath.rollout.hosts.gymnasium import ALL, INFOS, REWARDS, TERMINATEDS, TRUNCATEDS, ByAgent
from swath.rollout.hosts.returned import info_of
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves, splitter
from swath.rollout_workers.episode import NONE, Episode, Slots
from swath.rollout_workers.hosts.slot_host import SlotHost
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.policy_rows import PolicyRows

_BEGUN: dict[str, ByAgent] = {TERMINATEDS: {ALL: False}, TRUNCATEDS: {ALL: False}}
"""The flags of an episode that has just begun."""


class ManyAgents(SlotHost):
    """Envs of several agents each, who come and go.

    Args:
        inner: a `MultiAgentHost`.
        slots: who acts.
        perf: times the steps.
        rows_of: the rows of the policy of an id, and by number.
    """

    def __init__(
        self, inner: ArrayHost, slots: Slots, perf: PerfStats, rows_of: Callable[[str | int], PolicyRows]
    ) -> None:
        super().__init__(inner, slots, perf)
        self._raw = [[{}] * self.spec.num_envs]  # type: ignore[list-item]
        n = self.spec.num_envs
        self._rows_of = rows_of
        self._said: list[dict[Any, Any]] = [{} for _ in range(n)]
        self._seen: list[list[int]] = [[] for _ in range(n)]
        self._due: list[list[int]] = [[] for _ in range(n)]
        self._usual: list[tuple[list[Any], list[int]]] = [([], [])] * n
        """Who was seen before, and in which slots, if nobody ended."""
        self._splits: dict[int, Callable[[Leaves], Sequence[Any]]] = {}

    def enter(self, env: int, number: int, episode: Episode | None) -> None:  # noqa: ARG002  it is the episode's
        """Agents get slots as they are seen."""
        self.slots.leave(self.slots.begin(env, episode))
        self._said[env], self._usual[env], self._due[env] = {}, ([], []), []

    def _act(self) -> Leaves:
        """One leaf: actions by agent, one dict per env; policies are asked in the order in which they come first."""
        table, agents = self.slots.table, self.slots.agents
        dealt: list[ByAgent] = [{} for _ in self._due]
        due = np.fromiter(chain.from_iterable(self._due), np.int64)
        for number, where in self._by_policy(due):
            policy, ids = self._rows_of(number), due[where]
            rows = table["row"][ids]
            actions = policy.ask(policy.seen(rows), rows, self.slots, ids, self._info_of, self.explore)
            self._perf.lap("inference")
            if number not in self._splits:
                self._splits[number] = splitter(policy.space, writable=False)
            single = self._splits[number](policy.processor(actions))
            for env, agent, action in zip(table["env"][ids].tolist(), agents[ids].tolist(), single, strict=True):
                dealt[env][agent] = action
            self._perf.lap("action_processing")
        table["acted"][due], table["version"][due] = table["row"][due], self.version
        return [dealt]

    def settle(self, step: Step) -> None:
        """Rewards add up until the agent is observed, or ends; what comes before its first action, nobody gets."""
        table, paid, rewards = self.slots.table, list[int](), list[Any]()
        closing, ended = list[int](), dict[int, tuple[bool, bool]]()
        for env, seen in enumerate(self._seen):
            if env not in step.void:
                answer, slots = info_of(step.info, env), self._slots_of(env)
                usual, by_agent = self._usual[env], answer[REWARDS]
                if usual[0] and list(by_agent) == usual[0]:
                    paid += usual[1]
                    rewards += by_agent.values()
                else:
                    known = [(slots[agent], reward) for agent, reward in by_agent.items() if agent in slots]
                    paid += [slot for slot, _ in known]
                    rewards += [reward for _, reward in known]
                if usual[0]:
                    closing += seen
                else:
                    ends = self._ends(slots, answer)
                    ended |= ends
                    closing += dict.fromkeys([*seen, *ends])
        ids, amounts = np.array(paid, np.int64), np.fromiter(map(float, rewards), np.float64, len(rewards))
        has_acted = table["acted"][ids] != NONE
        table["unpaid"][ids[has_acted]] += amounts[has_acted]
        if ended:
            over, flags = [*ended], np.array([*ended.values()])
            table["terminated"][over], table["truncated"][over], table["over"][over] = *flags.T, True
        observed = np.array(closing, np.int64)
        self._close(observed[table["acted"][observed] != NONE])

    def said(self, env: int) -> Mapping[Any, Mapping[str, Any]]:
        """What the env said last to each agent."""
        return self._said[env]

    def _kept(self, infos: Any) -> Any:
        """By env, what it said to agents."""
        said = [each.get(INFOS, {}) for each in infos]
        return said if any(any(each.values()) for each in said) else None

    def _info_in(self, kept: Any, env: int, agent: Any) -> Mapping[str, Any]:
        said: Mapping[str, Any] = kept[env].get(agent, {})
        return said

    def _info_of(self, env: int, agent: Any) -> Mapping[str, Any]:
        said: Mapping[str, Any] = self.inner.info_of(env).get(agent, {})
        return said

    def _close(self, ids: Array) -> None:
        """The transitions of these slots have ended, with what they were paid up to now."""
        slots, table = self.slots, self.slots.table
        envs, raw, numbers = table["env"][ids], table["unpaid"][ids], table["policy"][ids]
        reward = raw
        for number in {*numbers.tolist()}:
            clip = self._rows_of(number).clip
            if clip is not None:
                reward = np.where(numbers == number, clip(raw), reward)
        table["clock"][ids], table["t"][ids], table["reward"][ids] = slots.clocks[envs], slots.lengths[envs], reward
        slots.transitions.append(table, ids)
        table["count"][ids] += 1
        table["total"][ids] += reward
        table["raw"][ids] += raw
        table["paid"][ids], table["unpaid"][ids] = reward, 0
        table["before"][ids], table["acted"][ids] = table["acted"][ids], NONE

    def _slots_of(self, env: int) -> dict[Any, int]:
        episode = self.slots.episodes[env]
        assert episode is not None
        return episode.slots

    def _ends(self, slots: Mapping[Any, int], answer: Mapping[str, ByAgent]) -> dict[int, tuple[bool, bool]]:
        """Slots that end with a step, and whether they are terminated and truncated."""
        terminateds, truncateds, over = answer[TERMINATEDS], answer[TRUNCATEDS], self.slots.table["over"]
        for_all = bool(terminateds[ALL]), bool(truncateds[ALL])
        agents: Iterable[Any] = slots if any(for_all) else [*terminateds, *truncateds]
        ends = {}
        for agent in agents:
            slot = slots.get(agent)
            if slot is not None and not over[slot]:
                flags = (for_all[0] or bool(terminateds.get(agent)), for_all[1] or bool(truncateds.get(agent)))
                if any(flags):
                    ends[slot] = flags
        return ends

    def _observe(self, envs: Array, infos: Any) -> dict[int, Exception]:
        failed: dict[int, Exception] = {}
        values: list[Any] = []
        slots: list[int] = []
        for env in envs.tolist():
            if infos is None:
                self._leave(env)  # agents that were seen in a reset that failed
            answer: Any = {**_BEGUN, INFOS: self.inner.info_of(env)} if infos is None else info_of(infos, env)
            try:
                seen = self._look(env, self._raw[0][env], answer)
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed[env] = error
            else:
                values += seen
                slots += self._seen[env]
        ids = np.array(slots, np.int64)
        self.slots.table["step"][ids] = self.steps
        if infos is None:
            self.note([{INFOS: self.inner.info_of(env)} if env in envs else {} for env in self._everyone.tolist()])
        for number, where in self._by_policy(ids):
            failed |= self._keep(self._rows_of(number), ids[where], [values[i] for i in where.tolist()])
        return failed

    def _look(self, env: int, returned: ByAgent, answer: Mapping[str, ByAgent]) -> Iterable[Any]:
        """Find the slots of the agents that an env shows: their observations.

        Raises:
            KeyError: the mapping function gave an unknown id.
            ValueError: the episode is over, and nobody has acted.
        """
        terminateds, truncateds, infos = answer[TERMINATEDS], answer[TRUNCATEDS], answer[INFOS]
        if infos:
            self._said[env].update(infos)
        ends = any(terminateds.values()) or any(truncateds.values())
        usual = self._usual[env]
        if not ends and usual[0] and list(returned) == usual[0]:
            self._seen[env] = self._due[env] = usual[1]
            return returned.values()
        episode, over = self.slots.episodes[env], terminateds[ALL] or truncateds[ALL]
        assert episode is not None
        seen, due, values = list[int](), list[int](), []
        for agent, observation in returned.items():
            has_ended = over or terminateds.get(agent) or truncateds.get(agent)
            slot = episode.slots.get(agent)
            if slot is None:
                if has_ended:
                    continue
                slot = self.slots.take(episode, agent, self._rows_of(episode.policy_for(agent)).number)
            elif self.slots.table["over"][slot]:
                continue
            seen.append(slot)
            values.append(observation)
            if not has_ended:
                due.append(slot)
        if over:
            acted = self.slots.table[[*episode.slots.values()]]
            if not ((acted["acted"] != NONE) | (acted["before"] != NONE)).any():
                raise ValueError(
                    f"the episode ended after {episode.total_env_steps + 1} steps in which no agent was observed to "
                    "act; an env with several agents must observe at least one before its end"
                )
        self._seen[env], self._due[env] = seen, due
        self._usual[env] = ([], []) if ends or len(seen) < len(returned) else (list(returned), seen)
        return values

    def _keep(self, rows: PolicyRows, ids: Array, values: list[Any]) -> dict[int, Exception]:
        """Process observations of a policy's agents, and keep them; the envs that failed by it.

        Where the filter raises, all envs with agents of the policy have failed.
        """
        failed: dict[int, Exception] = {}
        envs = self.slots.table["env"][ids]
        try:
            raw = rows.packed(values)
        except Exception:  # noqa: BLE001  each row is tried alone
            for env, value in zip(envs.tolist(), values, strict=True):
                try:
                    rows.packed([value])
                except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                    failed[env] = error
            good = ~np.isin(envs, [*failed])
            if not good.any():
                return failed
            ids, envs = ids[good], envs[good]
            raw = rows.packed([value for value, fits in zip(values, good, strict=True) if fits])
        try:
            first = rows.keep_observed(rows.filtered(raw))
        except Exception as error:  # noqa: BLE001  likewise
            return failed | dict.fromkeys(envs.tolist(), error)
        self.slots.table["row"][ids] = np.arange(first, first + len(ids))
        return failed

    def _by_policy(self, ids: Array) -> list[tuple[int, Array]]:
        """The numbers of the policies of these slots, in order of first appearance, and where their slots are."""
        numbers = self.slots.table["policy"][ids]
        return [(number, np.flatnonzero(numbers == number)) for number in dict.fromkeys(numbers.tolist())]

    def _leave(self, env: int) -> None:
        slots = self._slots_of(env)
        self.slots.leave([*slots.values()])
        slots.clear()
        self._usual[env] = ([], [])
