"""The loop's actor: what envs show becomes rows of policies, and each policy is asked once per step, for all who act.

    LoneAgents   each env has one agent: env i is slot i         arrays [B, …] go on as they are
    ManyAgents   agents come and go: who is seen gets a slot     {agent: observation}, sorted by policy

An env whose observations do not fit has failed; where a filter raises, all envs whose observations it was given have.
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
from swath.rollout_workers.sampling.policy_rows import NONE, PolicyRows, Said
from swath.rollout_workers.sampling.slots import LONE_AGENT, Episode, Slots


class Agents(ABC):
    """The agents of B envs: the loop's actor, whose `look` reads what envs return.

    Args:
        host: the envs.
        slots: who acts.
        timer: times the steps.
        announce: called for each env in which an episode has begun, before policies are asked.
    """

    def __init__(self, host: ArrayHost, slots: Slots, timer: PerfStats, announce: Callable[[int], None]) -> None:
        self.slots, self._host, self._timer, self._announce = slots, host, timer, announce
        self._everyone = np.arange(host.spec.num_envs)
        self._begun_in: list[int] = []

    def __call__(self, observation: Leaves) -> Leaves:  # noqa: ARG002  it is in the rows of policies
        """Return actions in the host's form."""
        self._timer.lap("env_wait")
        while self._begun_in:
            self._announce(self._begun_in.pop(0))
        return self._act()

    def begin(self, envs: Sequence[int]) -> None:
        """Note the envs in which episodes have begun; the state of their agents is in their slots."""
        for env in envs:
            episode = self.slots.episode(env)
            if not episode.has_begun:
                episode.has_begun = True
                self._begun_in.append(env)

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

    def _keep(self, rows: PolicyRows, ids: Array, read: Callable[[Any], Any], said: Said) -> dict[int, Exception]:
        """Keep observations of slots of one policy; return errors of the envs that failed.

        Args:
            rows: of the policy.
            ids: the slots.
            read: observations of some of these, by their places, as the filter takes them; raises if they do not fit.
            said: what the envs said to all of them; nothing if empty.
        """
        of, failed = self.slots.fields, dict[int, Exception]()
        try:
            observations = read(slice(None))
        except Exception:
            envs = of["env"][ids]
            for place, env in enumerate(envs.tolist()):
                try:
                    read([place])
                except Exception as error:  # noqa: BLE001  it leaves with the others
                    failed[env] = error
            if not failed:
                raise
            good = np.flatnonzero(~np.isin(envs, [*failed]))
            said = [said[place] for place in good.tolist()] if said else said
            return failed | (self._keep(rows, ids[good], lambda which: read(good[which]), said) if good.size else {})
        try:
            of["row"][ids] = rows.observe(observations, said)
        except Exception as error:  # noqa: BLE001  likewise
            return dict.fromkeys(of["env"][ids].tolist(), error)
        return failed

    def _ask(self, rows: PolicyRows, ids: Array) -> Leaves:
        """Return the policy's actions, as envs take them, for the latest observations of slots."""
        actions = rows.ask(self.slots, ids)
        self._timer.lap("inference")
        dealt = actions if rows.process is None else rows.process(actions)
        self._timer.lap("action_processing")
        return dealt


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
        of, ended = self.slots.fields, step.ends
        moved: Array | slice = slice(None)
        if step.void:
            ended, moved = ended.without(step.void), np.delete(self._everyone, step.void)
        if ended.envs.size:
            of["terminated"][ended.envs], of["truncated"][ended.envs] = ended.terminated, ended.truncated
        self.slots.close(moved, step.reward[moved])

    def _look(self, envs: Sequence[int], leaves: Leaves, infos: Infos | None) -> dict[int, Exception]:
        ids, places = self._everyone, envs
        if len(envs) < len(ids):
            ids = np.array(envs, np.int64)
            leaves = [leaf.take(ids, axis=0) for leaf in leaves]
        if infos is None:
            infos, places = [self._host.info_of(env) for env in envs], range(len(envs))
        said = [*zip(repeat(infos), places)] if any(infos) else ()
        return self._keep(self._rows, ids, partial(self._rows.sliced, leaves), said)

    def _act(self) -> Leaves:
        """Return the actions of all envs, also of envs that will ignore them."""
        return self._ask(self._rows, self._everyone)


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
    """Envs of several agents each, which come and go; only this class reads and builds the dicts of these envs."""

    def __init__(self, host: ArrayHost, slots: Slots, timer: PerfStats, announce: Callable[[int], None]) -> None:
        super().__init__(host, slots, timer, announce)
        self._acting: list[dict[Any, int]] = [{} for _ in self._everyone]
        self._shown = [_NOBODY] * len(self._everyone)
        self._sorted: tuple[list[int], list[tuple[PolicyRows, Array, Array]]] = [], []

    def enter(self, env: int, episode: Episode) -> None:
        """Forget the agents of the last episode; agents get slots when they are observed."""
        self.slots.begin(env, episode)
        self._acting[env], self._shown[env] = {}, _NOBODY

    def settle(self, step: Step) -> None:
        """Record rewards, which add up until the agent is observed or ends; drop rewards before its first action."""
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
        """Return one leaf: actions by agent, one dict per env; policies act in order of first appearance."""
        slots, dealt = self.slots, [dict[Any, Any]() for _ in self._shown]
        for policy, _, ids in self._by_policy([*chain.from_iterable(shown.due for shown in self._shown)]):
            actions = self._ask(policy, ids)
            single = policy.split(actions)
            for env, agent, action in zip(slots.fields["env"][ids].tolist(), slots.agents[ids], single, strict=True):
                dealt[env][agent] = action
            self._timer.lap("action_processing")
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
        """Find or take the slots of the agents that an env shows; return their observations.

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
            made = f"{episode.total_env_steps + 1} steps in which no agent was observed to act"
            raise ValueError(f"the episode ended after {made}; an env must show at least one agent before its end")
        flags = terminateds, truncateds
        ends = {
            acting.pop(agent): [bool(of_kind[ALL] or of_kind.get(agent)) for of_kind in flags]
            for agent in ended
            if agent in acting
        }
        self._shown[env] = Shown([] if ends or len(seen) < len(returned) else [*returned], seen, due, ends, rewards)
        return values

    def _by_policy(self, slots: list[int]) -> list[tuple[PolicyRows, Array, Array]]:
        """Sort slots by policy: policies in order of first appearance, positions of their slots, and the slots."""
        if slots != self._sorted[0]:
            ids = np.array(slots, np.int64)
            numbers = self.slots.fields["policy"][ids]
            found = [(number, np.flatnonzero(numbers == number)) for number in dict.fromkeys(numbers.tolist())]
            self._sorted = slots, [(self.slots.policies[number], where, ids[where]) for number, where in found]
        return self._sorted[1]
