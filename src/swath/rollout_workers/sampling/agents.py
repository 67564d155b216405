"""The agents of B envs, which are host and actor of the loop: they pass observations to policies, and actions to envs.

    LoneAgents   each env has one agent: env i is slot i               arrays [B, …] pass through
    ManyAgents   agents come and go: an observed agent gets a slot     {agent: observation}, sorted by policy

Each policy is called once per step, for all its agents. An env whose observations do not fit has failed; if a filter
raises, all envs have failed whose observations it got.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from swath.rollout.hosts.base import ArrayHost, EnvRaised, Transition
from swath.rollout.hosts.gymnasium import ALL as WHOLE_ENV
from swath.rollout.hosts.gymnasium import INFOS, REWARDS, TERMINATEDS, TRUNCATEDS, ByAgent
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.policy_rows import ALL, ENV, PolicyRows, with_rows
from swath.rollout_workers.sampling.slots import LONE_AGENT, Episode, Slots


class Agents(ABC):
    """The agents of B envs, in the places of the host and of the policy in the loop.

    Args:
        host: the envs.
        slots: of the agents.
        timer: times the steps.
        announce: called for each env in which an episode has begun, before policies act.

    Attributes:
        spec: of the host.
        rebuild: builds the envs again.
    """

    def __init__(self, host: ArrayHost, slots: Slots, timer: PerfStats, announce: Callable[[int], None]) -> None:
        self.slots, self._host, self._timer, self._announce = slots, host, timer, announce
        self.spec, self.rebuild, self._envs = host.spec, host.rebuild, range(host.spec.num_envs)
        n_envs, leaves = self.spec.num_envs, host.spec.observation
        # What the envs returned last.
        self._returned: Leaves = [np.zeros((n_envs, *leaf.shape), leaf.dtype) for leaf in leaves] or [[{}] * n_envs]
        self._latest: Leaves = []  # the policies' inputs, if they differ from it
        self._started_envs: list[int] = []

    def begin(self, envs: Sequence[int]) -> None:
        """Note the envs in which episodes have begun; the state of their agents is in their slots."""
        for env in envs:
            episode = self.slots.episodes[env]
            if not episode.has_begun:
                episode.has_begun = True
                self._started_envs.append(env)

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env.

        Raises:
            EnvRaised: a reset raised, or its observation cannot be used.
        """
        return self._look_at_reset(self._envs, self._host.reset_all(seeds), [])

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; return `base` with their observations, or itself, as hosts do.

        Raises:
            EnvRaised: a reset raised, or its observation cannot be used.
        """
        leaves = self._host.reset(envs, self._returned, seeds)
        return base if leaves is self._returned else self._look_at_reset(envs, leaves, base)

    @abstractmethod
    def _look_at_reset(self, envs: Sequence[int], leaves: Leaves, base: Leaves) -> Leaves:
        """Keep what envs returned in a reset; return `base` with what policies see."""

    def _working_envs(self, transition: Transition) -> Sequence[int]:
        """Return the envs whose results of a step can be looked at."""
        failed = [env for env, _ in transition.failed]
        return [env for env in self._envs if env not in failed] if self.spec.steps_singly else ()


class LoneAgents(Agents):
    """Envs of one agent each, for which one policy acts: env i is slot i, and all act in each step."""

    _rows: PolicyRows

    def enter(self, env: int, episode: Episode) -> None:
        """Take the env's slot."""
        self._rows = self.slots.rows_of(episode.policy_for())
        self.slots.begin(env, episode)
        slot = self.slots.add_agent(episode, LONE_AGENT, self._rows)
        assert slot == env

    def settle(self, step: Step) -> None:
        """Record the reward of each env's transition, and write it."""
        rows, ends, clocks, reward = self._rows, step.ends, self.slots.clocks, step.reward
        if step.void:
            ids, ends = np.delete(rows.all_ids, step.void), ends.without(step.void)
            step.reward = np.zeros(len(reward))
            step.reward[ids] = rows.end(ids, reward[ids], clocks[ids])
        else:
            step.reward = rows.end(ALL, reward, clocks)
        if ends.envs.size:
            rows.fields["terminated"][ends.envs], rows.fields["truncated"][ends.envs] = ends.terminated, ends.truncated
        rows.write(step, self.slots.n_steps)

    def __call__(self, observation: Leaves) -> Leaves:
        """Compute the policy's actions for all envs, also for envs that will ignore them; return answers to keep."""
        rows, timer = self._rows, self._timer
        if timer.is_timing:
            timer.lap("env_wait")
        while self._started_envs:
            self._announce(self._started_envs.pop(0))
        answers = rows.act(observation, rows.all_ids, self.slots.episodes)
        if timer.is_timing:
            timer.lap("inference")
        return answers

    def step(self, action: Leaves, only: int | None = None) -> Transition:  # noqa: ARG002
        """Step all envs, with processed actions, and look at what they return."""
        rows, timer = self._rows, self._timer
        processed = action if rows.process is None else rows.process(action[: rows.n_actions])
        if timer.is_timing:
            timer.lap("action_processing")
        transition = self._host.step(processed)
        if timer.is_timing:
            timer.lap("env_wait")
        envs = self._working_envs(transition) if transition.failed else self._envs
        if envs:
            self._returned, infos = transition.observation, transition.info
            if rows.has_infos or any(infos):
                rows.note_infos(infos if isinstance(infos, Mapping) else [infos[env] for env in envs], envs)
        if not rows.passes_on:
            if envs:
                self._latest, errors = self._inputs(envs, transition.observation, self._latest)
                transition.failed = [*transition.failed, *errors.items()]
            transition.observation = self._latest
        if timer.is_timing:
            timer.lap("raw_obs_processing")
        return transition

    def _look_at_reset(self, envs: Sequence[int], leaves: Leaves, base: Leaves) -> Leaves:
        rows, self._returned = self._rows, leaves
        rows.note_infos([self._host.info_of(env) for env in envs], envs)
        if rows.passes_on:
            return leaves
        self._latest, errors = self._inputs(envs, leaves, base)
        for env, error in errors.items():
            raise EnvRaised(env, error) from error
        return self._latest

    def _inputs(self, envs: Sequence[int], leaves: Leaves, base: Leaves) -> tuple[Leaves, dict[int, Exception]]:
        """Return `base` with the policy's inputs for some envs, and errors by env."""
        rows, n_envs = self._rows, len(self._envs)
        part = leaves if len(envs) == n_envs else [leaf[envs] for leaf in leaves]
        inputs, positions, errors = rows.preprocess(lambda indices: [leaf[indices] for leaf in part], len(envs))
        if 0 < len(positions) < n_envs:
            inputs = with_rows(base, n_envs, [envs[position] for position in positions], inputs)
        return inputs or base, {envs[position]: error for position, error in errors.items()}


class Shown(NamedTuple):
    """The agents' results of a step or reset of an env, by their tokens.

    Attributes:
        agents: the observed ones, if none has ended or was left out; else empty.
        observed: the observed agents.
        acting: the agents that act next.
        ends: agents that end, and whether they are terminated and truncated.
        rewards: by agent.
    """

    agents: list[Any]
    observed: list[int]
    acting: list[int]
    ends: Mapping[int, list[bool]]
    rewards: ByAgent


_NOTHING_SHOWN = Shown([], [], [], {}, {})
_RESET_RESULT: dict[str, ByAgent] = {REWARDS: {}, TERMINATEDS: {WHOLE_ENV: False}, TRUNCATEDS: {WHOLE_ENV: False}}

# A token is the number of a policy, and a slot in the lower bits.
_SLOT_BITS = 32


class ManyAgents(Agents):
    """Envs of several agents each, which come and go; only this class reads and builds their dicts."""

    def __init__(self, host: ArrayHost, slots: Slots, timer: PerfStats, announce: Callable[[int], None]) -> None:
        super().__init__(host, slots, timer, announce)
        self._tokens: list[dict[Any, int]] = [{} for _ in self._envs]  # tokens of all agents of the episode
        self._running: list[dict[Any, int]] = [{} for _ in self._envs]  # tokens of agents that have not ended
        self._shown = [_NOTHING_SHOWN] * len(self._envs)
        self._sorted: tuple[list[int], list[tuple[PolicyRows, Array, Array]]] = [], []

    def enter(self, env: int, episode: Episode) -> None:
        """Forget the agents of the last episode; agents get slots when they are observed."""
        self.slots.begin(env, episode)
        self._tokens[env], self._running[env], self._shown[env] = {}, {}, _NOTHING_SHOWN

    def settle(self, step: Step) -> None:
        """Record rewards, which add up until the agent is observed or ends; drop rewards before its first action."""
        rewarded, rewards, closing, ends = list[int](), list[Any](), list[int](), dict[int, list[bool]]()
        for env, shown in enumerate(self._shown):
            if env in step.void:
                continue
            if shown.agents and list(shown.rewards) == shown.agents:
                rewarded += shown.observed
                rewards += shown.rewards.values()
            else:
                tokens = self._tokens[env]
                by_token = {tokens[agent]: reward for agent, reward in shown.rewards.items() if agent in tokens}
                rewarded += by_token
                rewards += by_token.values()
            closing += dict.fromkeys((*shown.observed, *shown.ends)) if shown.ends else shown.observed
            ends |= shown.ends
        amounts = np.fromiter(map(float, rewards), np.float64, len(rewards))
        for rows, positions, ids in self._group_by_policy(rewarded):
            rows.fields["pending_reward"][ids] += np.where(rows.fields["is_open"][ids], amounts[positions], 0)
        if ends:
            flags = np.array([*ends.values()])
            for rows, positions, ids in self._group_by_policy([*ends]):
                rows.fields["terminated"][ids], rows.fields["truncated"][ids] = flags[positions].T
        for rows, _, ids in self._group_by_policy(closing):
            is_open = rows.fields["is_open"][ids]
            closed = ids if is_open.all() else ids[is_open]
            if len(closed):
                rows.end_open(closed, self.slots.clocks, self.slots.n_steps)

    def __call__(self, observation: Leaves) -> Leaves:  # noqa: ARG002  policies have the latest observations
        """Return one leaf: actions by agent, one dict per env; policies act in order of first appearance."""
        by_env, timer = [dict[Any, Any]() for _ in self._envs], self._timer
        if timer.is_timing:
            timer.lap("env_wait")
        while self._started_envs:
            self._announce(self._started_envs.pop(0))
        for rows, _, ids in self._group_by_policy([*chain.from_iterable(shown.acting for shown in self._shown)]):
            inputs = rows.latest if ids is rows.all_ids else [leaf.take(ids, axis=0) for leaf in rows.latest]
            answers = rows.act(inputs, ids, self.slots.episodes)
            rows.open(inputs, answers, ids)
            if timer.is_timing:
                timer.lap("inference")
            actions = answers[: rows.n_actions]
            split = rows.split(actions if rows.process is None else rows.process(actions))
            envs = rows.fields["labels"][ids, ENV].tolist()
            for env, agent, action in zip(envs, rows.agents[ids].tolist(), split, strict=True):
                by_env[env][agent] = action
            if timer.is_timing:
                timer.lap("action_processing")
        return [by_env]

    def step(self, action: Leaves, only: int | None = None) -> Transition:  # noqa: ARG002
        """Step all envs, and look at what they return."""
        transition, timer = self._host.step(action), self._timer
        if timer.is_timing:
            timer.lap("env_wait")
        envs = self._working_envs(transition) if transition.failed else self._envs
        self._returned = transition.observation
        transition.failed = [*transition.failed, *self._keep(envs, transition.observation, transition.info).items()]
        if timer.is_timing:
            timer.lap("raw_obs_processing")
        return transition

    def _look_at_reset(self, envs: Sequence[int], leaves: Leaves, base: Leaves) -> Leaves:  # noqa: ARG002
        self._returned = leaves
        for env in envs:
            self.enter(env, self.slots.episodes[env])  # drops agents of a failed reset
        results = {env: {**_RESET_RESULT, INFOS: self._host.info_of(env)} for env in envs}
        for env, error in self._keep(envs, leaves, results).items():
            raise EnvRaised(env, error) from error
        return leaves

    def _keep(self, envs: Sequence[int], leaves: Leaves, results: Any) -> dict[int, Exception]:
        """Keep the observations that envs returned, with their other results by env; return errors by env."""
        failed, values, observed, infos = dict[int, Exception](), list[Any](), list[int](), dict[int, Any]()
        for env in envs:
            result = results[env]
            try:
                values += self._observe(env, self.slots.episodes[env], leaves[0][env], result)
                observed += self._shown[env].observed
            except Exception as error:  # noqa: BLE001  it is returned with the others
                failed[env] = error
            if any(result[INFOS].values()):
                infos |= {self._tokens[env].get(agent, -1): info for agent, info in result[INFOS].items()}
        for rows, positions, ids in self._group_by_policy(observed):
            inputs, ok, errors = rows.preprocess(partial(rows.pack, [values[i] for i in positions.tolist()]), len(ids))
            failed |= {int(rows.fields["labels"][ids[position], ENV]): error for position, error in errors.items()}
            if ok:
                rows.observe(inputs, ids if len(ok) == len(ids) else ids[ok])
            if infos or rows.has_infos:
                token = rows.number << _SLOT_BITS
                rows.note_infos([infos.get(token | slot, {}) for slot in ids[ok].tolist()], ids[ok].tolist())
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
        running, is_over = self._running[env], terminateds[WHOLE_ENV] or truncateds[WHOLE_ENV]
        ended = [*(running if is_over else dict.fromkeys(flagged))]
        observed, acting, values = list[int](), list[int](), []
        for agent, observation in returned.items():
            has_ended = is_over or agent in ended
            if agent not in running:
                if has_ended or agent in episode.slots:
                    continue
                rows = self.slots.rows_of(episode.policy_for(agent))
                token = rows.number << _SLOT_BITS | self.slots.add_agent(episode, agent, rows)
                running[agent] = self._tokens[env][agent] = token
                self._sorted = [], []
            observed.append(running[agent])
            values.append(observation)
            if not has_ended:
                acting.append(running[agent])
        if is_over and not any(
            rows.table[slot]["is_open"] or rows.table[slot]["n_made"] for rows, slot in episode.slots.values()
        ):
            steps = f"{episode.total_env_steps + 1} steps in which no agent was observed to act"
            raise ValueError(f"the episode ended after {steps}; an env must show at least one agent before its end")
        both_flags = terminateds, truncateds
        ends = {
            running.pop(agent): [bool(flags[WHOLE_ENV] or flags.get(agent)) for flags in both_flags]
            for agent in ended
            if agent in running
        }
        agents = [] if ends or len(observed) < len(returned) else [*returned]
        self._shown[env] = Shown(agents, observed, acting, ends, rewards)
        return values

    def _group_by_policy(self, tokens: list[int]) -> list[tuple[PolicyRows, Array, Array]]:
        """Sort agents by policy: policies in order of first appearance, positions of their agents, and the slots."""
        if tokens != self._sorted[0]:
            numbers, slots = np.divmod(np.array(tokens, np.int64), 1 << _SLOT_BITS)
            groups = list[tuple[PolicyRows, Array, Array]]()
            for number in dict.fromkeys(numbers.tolist()):
                rows, positions = self.slots.policies[number], np.flatnonzero(numbers == number)
                ids = slots[positions]
                groups.append((rows, positions, rows.all_ids if np.array_equal(ids, rows.all_ids) else ids))
            self._sorted = tokens, groups
        return self._sorted[1]
