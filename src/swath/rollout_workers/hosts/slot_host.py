"""A host whose observations become rows of policies, and whose steps become what slots are paid and how they end.

It is the loop's actor, too: each policy is asked once per step, for all slots that act next.

    LoneAgents   each env has one agent: env i is slot i         arrays [B, …] go on as they are
    ManyAgents   agents come and go: who is seen gets a slot     {agent: observation}, sorted by policy

Nobody reads the observations that the loop is handed. An env whose observations do not fit has failed; where a filter
raises, all envs whose observations it was given have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from swath.rollout.hosts.base import ArrayHost, ArraySpec, Ends, EnvRaised, Transition
from swath.rollout.hosts.returned import info_of
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves, plain_leaves
from swath.rollout_workers.episode import LONE_AGENT, NONE, SLOT, Episode, Slots
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.policy_rows import PolicyRows


class SlotHost(ABC):
    """An array host over another one.

    Args:
        inner: the envs.
        slots: who acts.
        perf: times the steps.

    Attributes:
        announce: called for each env in which an episode has begun, before policies are asked.
        explore: whether actions are sampled; None: as the settings of each policy say.
        version: of the weights.
        steps: made by all envs together, and resets of envs of many agents.
        infos: by the number of the step, what the envs said with it, where they said anything.
    """

    announce: Callable[[int], None]
    explore: bool | None = None
    version = 0
    steps = 0

    def __init__(self, inner: ArrayHost, slots: Slots, perf: PerfStats) -> None:
        self.inner, self.slots, self._perf = inner, slots, perf
        self.infos: dict[int, Any] = {}
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
        self._perf.lap("env_wait")
        self._raw, failed, envs = moved.observation or self._raw, dict(moved.failed), self._everyone
        if failed:
            envs = np.delete(envs, [*failed] if self.spec.alone else envs)
        failed |= self._observe(envs, moved.info)
        self._perf.lap("raw_obs_processing")
        if failed:
            moved.failed = list(failed.items())
        return moved

    def __call__(self, observation: Leaves) -> Leaves:  # noqa: ARG002  it is in the rows of policies
        """Actions as the inner host takes them. Where one policy raises, no agent has acted."""
        self._perf.lap("env_wait")
        while self._begun_in:
            self.announce(self._begun_in.pop(0))
        return self._act()

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes have begun in these envs; what is remembered of agents is in their slots."""
        for env in envs:
            episode = self.slots.episodes[env]
            if episode is None:
                self._begun_in.append(env)
            elif not episode.has_begun:
                episode.has_begun = True
                self._begun_in.append(env)

    def rewind(self) -> None:
        """Never asked for: the hosts of rollout workers make no step twice."""
        raise RuntimeError("the steps of a rollout worker are not taken back")

    def note(self, infos: Any) -> None:
        """A step was made, or a reset: keep what the envs said with it, if they said anything."""
        kept = self._kept(infos)
        if kept is not None:
            self.infos[self.steps] = kept
        self.steps += 1

    def info_at(self, step: int, env: int, agent: Any) -> Mapping[str, Any]:
        """What an env said to an agent in a step."""
        return self._info_in(self.infos[step], env, agent) if step in self.infos else {}

    @abstractmethod
    def enter(self, env: int, number: int, episode: Episode | None) -> None:
        """An episode of this number is about to begin."""

    @abstractmethod
    def settle(self, step: Step) -> None:
        """Write down what slots were paid, how they ended, and the transitions that end with the step."""

    def flush(self) -> None:  # noqa: B027  others write at once
        """Write the transitions of steps that were settled."""

    @abstractmethod
    def said(self, env: int) -> Mapping[Any, Mapping[str, Any]]:
        """What an env said last to each agent of the running episode."""

    @abstractmethod
    def _kept(self, infos: Any) -> Any:
        """What of the infos of a step `_info_in` needs; None if nothing was said."""

    @abstractmethod
    def _info_in(self, kept: Any, env: int, agent: Any) -> Mapping[str, Any]:
        """What an env said to an agent."""

    @abstractmethod
    def _act(self) -> Leaves:
        """The actions as the inner host takes them."""

    @abstractmethod
    def _observe(self, envs: Array, infos: Any) -> dict[int, Exception]:
        """Keep what these envs have shown, in a step if there are infos, else in a reset; who failed by it, and why."""

    def _begun(self, envs: Array) -> Leaves:
        for env, error in self._observe(envs, None).items():
            raise EnvRaised(env, error) from error
        return []


class Made(NamedTuple):
    """A step of envs of one agent each.

    Attributes:
        row: the first of those acted on, which are one per env.
        reward: after clipping, `[B]`.
        ended: episodes that ended with it.
        reached: the first of the rows that these ended with.
        void: envs that made no transition.
    """

    row: int
    reward: Array
    ended: Ends
    reached: int
    void: Sequence[int]


class LoneAgents(SlotHost):
    """Envs of one agent each, for all of which one policy acts: env i is slot i, and all of them act in each step.

    What the policy sees and answers is written at once; transitions are made of many steps, when somebody needs them.

    Args:
        inner: the envs.
        slots: who acts.
        perf: times the steps.
        rows: of the policy.
    """

    def __init__(self, inner: ArrayHost, slots: Slots, perf: PerfStats, rows: PolicyRows) -> None:
        super().__init__(inner, slots, perf)
        n, space = self.spec.num_envs, rows.preprocessor.observation_space
        self._now = [np.zeros((n, *leaf.shape), leaf.dtype) for leaf in plain_leaves(space, "observation")]
        slots.agents[:] = LONE_AGENT
        self._rows, self._sums = rows, [slots.table[name] for name in ("total", "raw", "count")]
        self._written: Leaves = []
        self._made: list[Made] = []
        self._entered: list[tuple[int, int, int, int]] = []
        self._episode, self._start = np.zeros((2, n), np.int64)

    def enter(self, env: int, number: int, episode: Episode | None) -> None:
        """The slot of an env has its number."""
        slots = self.slots
        slots.begin(env, episode)
        names = ("row", "before", "paid") if self._made else ("row",)  # those of steps that are not flushed yet
        kept = {name: slots.table[name][env] for name in names}
        slots.fill(env, env, number, 0, self._rows.number)
        if episode is not None:
            episode.slots[LONE_AGENT] = env
            episode.agent_index(LONE_AGENT)
        for name, value in kept.items():
            slots.table[name][env] = value
        self._entered.append((len(self._made), env, number, int(slots.clocks[env])))

    def settle(self, step: Step) -> None:
        """Each env that made a transition has paid its agent."""
        ended, reward, clip, reached = step.ended, step.reward, self._rows.clip, NONE
        total, raw, count = self._sums
        count += 1
        if step.void:
            void = list(step.void)
            ended, reward = ended.without(void), reward.copy()
            count[void] -= 1
            reward[void] = 0
        if clip is not None:
            raw += reward
            reward = clip(reward)
        total += reward
        if ended:
            envs, table = ended.envs, self.slots.table
            table["terminated"][envs], table["truncated"][envs] = ended.terminated, ended.truncated
            table["over"][envs] = True
            if clip is None:
                raw[envs] = total[envs]
            reached = self._rows.keep_observed([leaf[envs] for leaf in self._now])
        self._made.append(Made(self._acted, reward, ended, reached, step.void))

    def flush(self) -> None:
        """Make transitions of the steps that were made."""
        if not self._made:
            return
        made, self._made, entered, self._entered = self._made, [], self._entered, []
        table, slots = self.slots.table, self.slots
        self._write_now()
        records = np.zeros((len(made), len(self._everyone)), SLOT)
        records["env"], records["policy"], records["version"] = self._everyone, self._rows.number, self.version
        records["step"] = np.arange(self.steps - len(made), self.steps)[:, None]
        records["reward"] = [each.reward for each in made]
        records["acted"] = np.array([each.row for each in made])[:, None] + self._everyone
        for name, now in (("before", "acted"), ("paid", "reward")):
            records[name][0], records[name][1:] = table[name], records[now][:-1]
            table[name] = records[now][-1]
        records["row"][:-1], records["row"][-1] = records["acted"][1:], table["row"]
        valid = np.ones(records.shape, np.bool_)
        for i, each in enumerate(made):
            if each.ended:
                envs = each.ended.envs
                records["terminated"][i, envs], records["truncated"][i, envs] = (
                    each.ended.terminated,
                    each.ended.truncated,
                )
                records["row"][i, envs] = np.arange(each.reached, each.reached + len(envs))
            if each.void:
                valid[i, list(each.void)] = False
        records["clock"] = slots.clocks - valid[::-1].cumsum(axis=0)[::-1]
        start = np.repeat(self._start[None], len(made), axis=0)
        records["episode"] = self._episode
        for i, env, episode, clock in entered:
            records["episode"][i:, env] = self._episode[env] = episode
            start[i:, env] = self._start[env] = clock
        records["t"] = records["clock"] - start
        begins = records["t"] == 0
        records["before"][begins], records["paid"][begins] = NONE, 0
        table["before"][slots.lengths == 0], table["paid"][slots.lengths == 0] = NONE, 0
        slots.transitions.append(records.reshape(-1), valid.reshape(-1))

    def said(self, env: int) -> Mapping[Any, Mapping[str, Any]]:
        """What the env said with its latest observation."""
        return {LONE_AGENT: self.inner.info_of(env)}

    def _kept(self, infos: Any) -> Any:
        return infos if any(infos) else None

    def _info_in(self, kept: Any, env: int, agent: Any) -> Mapping[str, Any]:  # noqa: ARG002  there is one
        return info_of(kept, env)

    def _act(self) -> Leaves:
        """The actions of all envs, also of those that will ignore them."""
        rows = self._rows
        if rows.remembers:
            self.flush()
        self._acted = self._write_now()
        where = slice(self._acted, self._acted + len(self._everyone))
        actions = rows.ask(self._now, where, self.slots, self._everyone, self._info_of, self.explore)
        self._perf.lap("inference")
        dealt = actions if rows.processor.changes_nothing else rows.processor(actions)
        self._perf.lap("action_processing")
        return dealt

    def _info_of(self, env: int, agent: Any) -> Mapping[str, Any]:  # noqa: ARG002  there is one
        return self.inner.info_of(env)

    def _write_now(self) -> int:
        """Write what the policy sees next, unless it was; the first of its rows."""
        row = self.slots.table["row"]
        if self._written is not self._now:
            row[:] = self._everyone + self._rows.keep_observed(self._now)
            self._written = self._now
        return int(row[0])

    def _observe(self, envs: Array, infos: Any) -> dict[int, Exception]:  # noqa: ARG002  read when they are asked for
        rows, whole = self._rows, self.spec.num_envs
        if not len(envs):
            return {}
        if rows.passes_on:
            self._now = self._raw
            return {}
        strays = rows.preprocessor.strays(self._of(envs))
        failed: dict[int, Exception] = {int(envs[at]): error for at, error in strays.items()}
        if failed:
            envs = np.setdiff1d(envs, [*failed]) if self.spec.alone else envs[:0]
        if not len(envs):
            return failed
        try:
            leaves = rows.filtered(self._of(envs))
        except Exception as error:  # noqa: BLE001  of the envs that it fails for
            return failed | dict.fromkeys(envs.tolist(), error)
        if len(envs) < whole:
            fresh = [leaf.copy() for leaf in self._now]
            for leaf, part in zip(fresh, leaves, strict=True):
                leaf[envs] = part
            leaves = fresh
        self._now = leaves
        return failed

    def _of(self, envs: Array) -> Leaves:
        return self._raw if len(envs) == self.spec.num_envs else [leaf[envs] for leaf in self._raw]
