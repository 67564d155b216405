"""A host whose observations become rows of policies, and whose steps become what slots are paid and how they end.

It is the loop's actor, too: each policy is asked once per step, for all slots that act next.

    LoneAgents   each env has one agent: env i is slot i         arrays [B, …] go on as they are
    ManyAgents   agents come and go: who is seen gets a slot     {agent: observation}, sorted by policy

Nobody reads the observations that the loop is handed. An env whose observations do not fit has failed; where a filter
raises, all envs whose observations it was given have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from swath.rollout.hosts.base import ArrayHost, ArraySpec, EnvRaised, Transition
from swath.rollout.hosts.gymnasium import ALL, INFOS, REWARDS, TERMINATEDS, TRUNCATEDS, ByAgent
from swath.rollout.hosts.returned import info_of
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves, splitter
from swath.rollout_workers.episode import LONE_AGENT, Episode
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.policy_rows import NONE, PolicyRows
from swath.rollout_workers.sampling.slots import Slots, Which


class SlotHost(ABC):
    """An array host over another one.

    Args:
        inner: the envs.
        slots: who acts.
        laps: times the steps.
        announce: called for each env in which an episode has begun, before policies are asked.

    Attributes:
        version: of the weights.
    """

    version = 0

    def __init__(self, inner: ArrayHost, slots: Slots, laps: PerfStats, announce: Callable[[int], None]) -> None:
        self.inner, self.slots, self._laps, self._announce = inner, slots, laps, announce
        self.info_of, self.seed_of, self.render = inner.info_of, inner.seed_of, inner.render
        self.rebuild, self.retire, self.close = inner.rebuild, inner.retire, inner.close
        self.spec: ArraySpec = inner.spec
        self._everyone = np.arange(self.spec.num_envs)
        self._raw = [np.zeros((self.spec.num_envs, *leaf.shape), leaf.dtype) for leaf in self.spec.observation]
        self._begun_in: list[int] = []
        slots.said = self.said

    @property
    def env(self) -> Any:
        """The live env object."""
        return self.inner.env

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env."""
        self._raw = self.inner.reset_all(seeds)
        return self._begun(self._everyone)

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; only their observations are kept."""
        raw = self.inner.reset(envs, self._raw, seeds)
        if raw is self._raw:
            return onto
        self._raw = raw
        return self._begun(np.array(envs))

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env; slots of envs that failed stand where they stood."""
        moved = self.inner.step(action, only)
        self._laps.lap("env_wait")
        self._raw, failed, envs = moved.observation or self._raw, dict(moved.failed), self._everyone
        if failed:
            envs = np.delete(envs, [*failed] if self.spec.alone else envs)
        self.slots.steps += 1
        failed |= self._observe(envs, moved.info)
        self._laps.lap("raw_obs_processing")
        if failed:
            moved.failed = list(failed.items())
        return moved

    def __call__(self, observation: Leaves) -> Leaves:  # noqa: ARG002  it is in the rows of policies
        """Actions as the inner host takes them."""
        self._laps.lap("env_wait")
        while self._begun_in:
            self._announce(self._begun_in.pop(0))
        return self._act()

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes have begun in these envs; what is remembered of agents is in their slots."""
        for env in envs:
            episode = self.slots.episodes[env]
            if episode is not None and not episode.has_begun:
                episode.has_begun = True
                self._begun_in.append(env)

    def rewind(self) -> None:
        """Never asked for: the hosts of rollout workers make no step twice."""
        raise RuntimeError("the steps of a rollout worker are not taken back")

    def infos_at(self, records: Array) -> list[Mapping[str, Any]]:
        """What the envs said to the agents of these transitions when they ended."""
        slots, whose = self.slots, ("step", "env", "episode", "agent")
        if not slots.infos:
            return [{}] * len(records)
        return [
            self._own(info_of(slots.infos.get(step, ()), env), slots.known[episode].get_agents()[place])
            for step, env, episode, place in zip(*(records[name].tolist() for name in whose), strict=True)
        ]

    @abstractmethod
    def enter(self, env: int, episode: Episode) -> None:
        """An episode is about to begin."""

    @abstractmethod
    def settle(self, step: Step) -> None:
        """Write down what slots were paid, how they ended, and the transitions that end with the step."""

    @abstractmethod
    def said(self, env: int) -> Mapping[Any, Mapping[str, Any]]:
        """What an env said last to each agent of the running episode."""

    @abstractmethod
    def _own(self, info: Mapping[Any, Any], agent: Any) -> Mapping[str, Any]:
        """What an info of an env says to an agent."""

    @abstractmethod
    def _act(self) -> Leaves:
        """The actions as the inner host takes them."""

    @abstractmethod
    def _observe(self, envs: Array, infos: Any) -> dict[int, Exception]:
        """Keep what these envs have shown, in a step if there are infos, else in a reset; who failed by it, and why."""

    def _begun(self, envs: Array) -> Leaves:
        self.slots.steps += 1
        for env, error in self._observe(envs, None).items():
            raise EnvRaised(env, error) from error
        return []

    def _asked(self, policy: PolicyRows, ids: Array) -> Leaves:
        """What a policy answers to the latest observations of these slots."""
        of = self.slots.fields
        rows = of["row"][ids]
        actions = policy.ask(rows, self.slots, ids, self._info_of)
        of["acted"][ids], of["version"][ids] = rows, self.version
        self._laps.lap("inference")
        dealt = actions if policy.processor.changes_nothing else policy.processor(actions)
        self._laps.lap("action_processing")
        return dealt

    def _info_of(self, env: int, agent: Any) -> Mapping[str, Any]:
        return self._own(self.inner.info_of(env), agent)


class LoneAgents(SlotHost):
    """Envs of one agent each, for all of which one policy acts: env i is slot i, and all of them act in each step.

    Args:
        inner: the envs.
        slots: who acts.
        laps: times the steps.
        announce: called for each env in which an episode has begun, before policies are asked.
        rows: of the policy.
    """

    def __init__(
        self, inner: ArrayHost, slots: Slots, laps: PerfStats, announce: Callable[[int], None], rows: PolicyRows
    ) -> None:
        super().__init__(inner, slots, laps, announce)
        self._rows = rows

    def enter(self, env: int, episode: Episode) -> None:
        """The slot of an env has its number, and shows its latest observation."""
        row = self.slots.fields["row"][env]
        self.slots.begin(env, episode)
        slot = self.slots.take(episode, LONE_AGENT, self._rows.number)
        assert slot == env
        self.slots.fields["row"][env] = row

    def settle(self, step: Step) -> None:
        """Each env that made a transition has paid its agent."""
        of, ended = self.slots.fields, step.ended
        moved: Which = slice(None)
        if step.void:
            ended, moved = ended.without(step.void), np.delete(self._everyone, step.void)
        if ended:
            of["terminated"][ended.envs], of["truncated"][ended.envs] = ended.terminated, ended.truncated
        of["unpaid"][moved], of["step"][moved] = step.reward[moved], self.slots.steps
        if any(step.info):
            self.slots.infos[self.slots.steps] = step.info
        self.slots.close(moved)

    def said(self, env: int) -> Mapping[Any, Mapping[str, Any]]:
        """What the env said with its latest observation."""
        return {LONE_AGENT: self.inner.info_of(env)}

    def _own(self, info: Mapping[Any, Any], agent: Any) -> Mapping[str, Any]:  # noqa: ARG002  there is one
        return info

    def _act(self) -> Leaves:
        """The actions of all envs, also of those that will ignore them."""
        return self._asked(self._rows, self._everyone)

    def _observe(self, envs: Array, infos: Any) -> dict[int, Exception]:
        if not len(envs):
            return {}
        raw = self._raw if len(envs) == len(self._everyone) else [leaf[envs] for leaf in self._raw]
        strays = self._rows.preprocessor.strays(raw)
        if strays:
            failed = {int(envs[at]): error for at, error in strays.items()}
            return failed | (self._observe(np.setdiff1d(envs, [*failed]), infos) if self.spec.alone else {})
        try:
            self.slots.fields["row"][envs] = self._rows.observe(raw)
        except Exception as error:  # noqa: BLE001  of the envs that it fails for
            return dict.fromkeys(envs.tolist(), error)
        return {}


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
    ends: Mapping[int, tuple[bool, bool]]
    rewards: ByAgent


_NOBODY = Shown([], [], [], {}, {})
_BEGUN: dict[str, ByAgent] = {REWARDS: {}, TERMINATEDS: {ALL: False}, TRUNCATEDS: {ALL: False}}


class ManyAgents(SlotHost):
    """Envs of several agents each, who come and go: the only place in which their dicts are read and made.

    Args:
        inner: a `MultiAgentHost`.
        slots: who acts.
        laps: times the steps.
        announce: called for each env in which an episode has begun, before policies are asked.
        rows_of: the rows of the policy of an id.
    """

    def __init__(
        self,
        inner: ArrayHost,
        slots: Slots,
        laps: PerfStats,
        announce: Callable[[int], None],
        rows_of: Callable[[str], PolicyRows],
    ) -> None:
        super().__init__(inner, slots, laps, announce)
        n = self.spec.num_envs
        self._raw, self._rows_of = [[{}] * n], rows_of  # type: ignore[list-item]
        self._said: list[dict[Any, Any]] = [{} for _ in range(n)]
        self._acting: list[dict[Any, int]] = [{} for _ in range(n)]
        self._shown = [_NOBODY] * n
        self._sorted: tuple[list[int], list[tuple[PolicyRows, Array, Array]]] = [], []
        self._splits: dict[int, Callable[[Leaves], Sequence[Any]]] = {}

    def enter(self, env: int, episode: Episode) -> None:
        """Agents get slots as they are seen."""
        self.slots.begin(env, episode)
        self._said[env], self._acting[env], self._shown[env] = {}, {}, _NOBODY

    def settle(self, step: Step) -> None:
        """Rewards add up until the agent is observed, or ends; what comes before its first action, nobody gets."""
        of, paid, rewards = self.slots.fields, list[int](), list[Any]()
        closing, ends = list[int](), dict[int, tuple[bool, bool]]()
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
        self.slots.close(moved[of["acted"][moved] != NONE])

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
            if policy.number not in self._splits:
                self._splits[policy.number] = splitter(policy.space, writable=False)
            single = self._splits[policy.number](actions)
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
                self._forget(env)  # agents that were seen in a reset that failed
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
                rows = self._rows_of(episode.policy_for(agent))
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
        ends = {
            acting.pop(agent): (
                bool(terminateds[ALL] or terminateds.get(agent)),
                bool(truncateds[ALL] or truncateds.get(agent)),
            )
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

    def _forget(self, env: int) -> None:
        episode = self.slots.episode(env)
        self.slots.leave([*episode.slots.values()])
        episode.slots.clear()
        self._acting[env], self._shown[env] = {}, _NOBODY
