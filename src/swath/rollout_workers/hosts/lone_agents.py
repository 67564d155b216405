"""Envs of one agent each: all of them act in each step, so that rows and transitions are made of many steps at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from swath.rollout.hosts.base import ArrayHost
from swath.rollout.hosts.returned import info_of
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves, plain_leaves
from swath.rollout_workers.episode import LONE_AGENT, Episode
from swath.rollout_workers.hosts.slot_host import SlotHost
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.policy_rows import PolicyRows
from swath.rollout_workers.sampling.slots import NONE, SLOT, Slots, Transitions, records_at

_NOBODY = np.empty(0, np.int64)


class Made(NamedTuple):
    """A step of envs of one agent each, all arrays `[B, …]`.

    Attributes:
        seen: leaves that the policy saw.
        answered: leaves that it answered.
        reached: leaves that the step led to.
        step: the step.
        reward: after clipping.
        clock: steps of the env before this one.
        begun: the same, when its episode began.
        episode: trajectory ids.
        version: of the weights.
    """

    seen: Leaves
    answered: Leaves
    reached: Leaves
    step: Step
    reward: Array
    clock: Array
    begun: Array
    episode: Array
    version: int


class LoneAgents(SlotHost):
    """Envs of one agent each, for all of which one policy acts.

    All of them act in each step. So rows and transitions are made of many steps at once, when somebody needs them.

    Args:
        inner: the envs.
        slots: who acts.
        perf: times the steps.
        rows: of the policy.
        transitions: where they are written.
        clocks: steps that each env has made.
    """

    def __init__(
        self, inner: ArrayHost, slots: Slots, perf: PerfStats, rows: PolicyRows, transitions: Transitions, clocks: Array
    ) -> None:
        super().__init__(inner, slots, perf)
        space = rows.preprocessor.observation_space
        n = self.spec.num_envs
        self._now = [np.zeros((n, *leaf.shape), leaf.dtype) for leaf in plain_leaves(space, "observation")]
        self._rows, self._transitions, self._clocks = rows, transitions, clocks
        self._made: list[Made] = []
        self._episodes, self._starts = np.zeros((2, n), np.int64)
        self._answer: tuple[Leaves, Leaves, int] = ([], [], 0)
        slots.info_of = lambda env, _: inner.info_of(env)

    def enter(self, episode: Episode) -> None:
        """The slot of an env has its number."""
        env, table = episode.env_id, self.slots.table
        before, paid = table["before"][env], table["paid"][env]  # of steps that are not flushed yet
        self.slots.take(episode, LONE_AGENT, self._rows.number)
        table["before"][env], table["paid"][env] = before, paid
        self._episodes, self._starts = table["episode"].copy(), self._starts.copy()
        self._starts[env] = self._clocks[env]

    def act(self) -> Leaves:
        """The actions of all envs, also of those that will ignore them."""
        before = _NOBODY
        if self._rows.remembers:
            self.flush()
            before = np.where(self.slots.lengths > 0, self.slots.table["before"], NONE)
        leaves = self._rows.ask(self._now, self.slots, self._everyone, before, self.explore)
        self._perf.lap("inference")
        self._answer = self._now, [leaf.copy() for leaf in leaves], self.version
        processor = self._rows.processor
        actions = leaves[: len(self.spec.action)]
        dealt = actions if processor.changes_nothing else processor(actions)
        self._perf.lap("action_processing")
        return dealt

    def settle(self, step: Step) -> Array:
        """Each env that made a transition has paid its agent."""
        table, ended, clip = self.slots.table, step.ended, self._rows.clip
        raw = step.reward.astype(np.float32)
        reward = raw if clip is None else clip(raw)
        seen, answered, version = self._answer
        self._made.append(
            Made(seen, answered, self._now, step, reward, self._clocks.copy(), self._starts, self._episodes, version)
        )
        stepped: Any = slice(None)
        if step.void:
            stepped, ended = np.delete(self._everyone, step.void), ended.without(step.void)
        table["count"][stepped] += 1
        table["total"][stepped] += reward[stepped]
        if clip is not None:
            table["raw"][stepped] += raw[stepped]
        if ended:
            envs = ended.envs
            table["terminated"][envs], table["truncated"][envs] = ended.terminated, ended.truncated
            table["over"][envs] = True
            if clip is None:
                table["raw"][envs] = table["total"][envs]
        return _NOBODY

    def flush(self) -> None:
        """Make rows and transitions of the steps that were made."""
        if not self._made:
            return
        made, self._made = self._made, []
        records, table = np.zeros((len(made), len(self._everyone)), SLOT), self.slots.table
        records["env"], records["policy"] = self._everyone, self._rows.number
        records["acted"], records["row"] = self._kept(made)
        for name in ("reward", "clock", "episode"):
            records[name] = [getattr(each, name) for each in made]
        records["t"] = records["clock"] - [each.begun for each in made]
        records["version"] = [[each.version] for each in made]
        records["step"] = np.arange(self.slots.steps - len(made), self.slots.steps)[:, None]
        for name, now in (("before", "acted"), ("paid", "reward")):
            records[name][0], records[name][1:] = table[name], records[now][:-1]
            table[name] = records[now][-1]
        begins = records["t"] == 0
        records["before"][begins], records["paid"][begins] = NONE, 0
        valid = np.ones(records.shape, np.bool_)
        for i, each in enumerate(made):
            ended = each.step.ended
            if ended:
                records["terminated"][i, ended.envs], records["truncated"][i, ended.envs] = (
                    ended.terminated,
                    ended.truncated,
                )
            if each.step.void:
                valid[i, list(each.step.void)] = False
        flat = records.reshape(-1)
        self._transitions.append(flat if valid.all() else records_at(flat, np.flatnonzero(valid)))

    def _kept(self, made: list[Made]) -> tuple[Array, Array]:
        """Keep what the policy saw and answered: the rows acted on, and those that were reached, `[T, B]`."""
        rows, n, last = self._rows, len(self._everyone), made[-1]
        ends = [(i, each.step.ended.envs) for i, each in enumerate(made[:-1]) if each.step.ended]
        seen = [[*leaves] for leaves in zip(*(each.seen for each in made), last.reached, strict=True)]
        for i, envs in ends:  # the next step began with the observation of another episode
            for leaves, reached in zip(seen, made[i].reached, strict=True):
                leaves.append(reached[envs])
        first, size = rows.keep_observed([np.concatenate(leaves) for leaves in seen]), n * len(made)
        answered = [np.concatenate(leaves) for leaves in zip(*(each.answered for each in made), strict=True)]
        rows.keep_answered(slice(first, first + size), answered)
        acted = first + np.arange(size).reshape(-1, n)
        after, extra = acted + n, first + size + n
        for i, envs in ends:
            after[i, envs] = np.arange(extra, extra + len(envs))
            extra += len(envs)
        return acted, after

    def said(self, env: int) -> Mapping[Any, Mapping[str, Any]]:
        """What the env said with its latest observation."""
        return {LONE_AGENT: self.inner.info_of(env)}

    def info_in(self, infos: Any, env: int, agent: Any) -> Mapping[str, Any]:  # noqa: ARG002  there is one
        """What the env said."""
        return info_of(infos, env)

    def _observe(self, envs: Array, infos: Any) -> dict[int, Exception]:  # noqa: ARG002  read when they are asked for
        strays = self._rows.preprocessor.strays(self._of(envs)) if len(envs) else {}
        failed: dict[int, Exception] = {int(envs[row]): error for row, error in strays.items()}
        good = np.delete(envs, [*strays]) if strays else envs
        if len(good) and (self.spec.alone or not failed):
            try:
                leaves = self._rows.filtered(self._of(good))
            except Exception as error:  # noqa: BLE001  of the envs that it fails for
                return failed | dict.fromkeys(good.tolist(), error)
            if len(good) < len(self._everyone):
                fresh = [leaf.copy() for leaf in self._now]
                for leaf, part in zip(fresh, leaves, strict=True):
                    leaf[good] = part
                leaves = fresh
            self._now = leaves
        return failed

    def _of(self, envs: Array) -> Leaves:
        return self._raw if len(envs) == self.spec.num_envs else [leaf[envs] for leaf in self._raw]
