"""The loop's actor: what envs show becomes rows of policies, and each policy is asked once per step, for all who act.

    LoneAgents   each env has one agent: env i is slot i         arrays [B, …] go on as they are
    ManyAgents   agents come and go: who is seen gets a slot     {agent: observation}, sorted by policy

An env whose observations do not fit has failed; where a filter raises, all envs whose observations it was given have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from swath.rollout.hosts.base import ArrayHost, Infos
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.episode import LONE_AGENT, Episode
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.policy_rows import PolicyRows, Said
from swath.rollout_workers.sampling.slots import Slots


class Agents(ABC):
    """Those of B envs. What the loop hands over is read when it is new, by `look`.

    Args:
        host: the envs.
        slots: who acts.
        laps: times the steps.
        announce: called for each env in which an episode has begun, before policies are asked.
    """

    def __init__(self, host: ArrayHost, slots: Slots, laps: PerfStats, announce: Callable[[int], None]) -> None:
        self.slots, self._host, self._laps, self._announce = slots, host, laps, announce
        self._everyone = np.arange(host.spec.num_envs)
        self._begun_in: list[int] = []

    def __call__(self, observation: Leaves) -> Leaves:  # noqa: ARG002  it is in the rows of policies
        """Actions as the host takes them."""
        self._laps.lap("env_wait")
        while self._begun_in:
            self._announce(self._begun_in.pop(0))
        return self._act()

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes have begun in these envs; what is remembered of agents is in their slots."""
        for env in envs:
            episode = self.slots.episode(env)
            if not episode.has_begun:
                episode.has_begun = True
                self._begun_in.append(env)

    def rewind(self) -> None:
        """Never asked for: the envs of rollout workers make no step twice."""
        raise RuntimeError("the steps of a rollout worker are not taken back")

    def look(self, envs: Sequence[int], leaves: Leaves, infos: Infos | None) -> dict[int, Exception]:
        """Keep what these envs have shown, in a step if there are infos, else in a reset; who failed by it, and why."""
        self._laps.lap("env_wait")
        failed = self._look(envs, leaves, infos)
        self._laps.lap("raw_obs_processing")
        return failed

    @abstractmethod
    def enter(self, env: int, episode: Episode) -> None:
        """An episode is about to begin."""

    @abstractmethod
    def settle(self, step: Step) -> None:
        """Write down what slots were paid, how they ended, and the transitions that end with the step."""

    @abstractmethod
    def _look(self, envs: Sequence[int], leaves: Leaves, infos: Infos | None) -> dict[int, Exception]:
        """As `look`."""

    @abstractmethod
    def _act(self) -> Leaves:
        """The actions as the host takes them."""

    def _keep(self, rows: PolicyRows, ids: Array, read: Callable[[Any], Any], said: Said) -> dict[int, Exception]:
        """Keep observations of slots of one policy; the envs that failed by it.

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
        """What a policy answers to the latest observations of these slots."""
        actions = rows.ask(self.slots, ids)
        self._laps.lap("inference")
        dealt = actions if rows.process is None else rows.process(actions)
        self._laps.lap("action_processing")
        return dealt


class LoneAgents(Agents):
    """Envs of one agent each, for all of which one policy acts: env i is slot i, and all of them act in each step."""

    _rows: PolicyRows

    def enter(self, env: int, episode: Episode) -> None:
        """The slot of an env has its number, and shows its latest observation."""
        row, self._rows = self.slots.fields["row"][env], self.slots.rows_of(episode.policy_for())
        self.slots.begin(env, episode)
        slot = self.slots.take(episode, LONE_AGENT, self._rows.number)
        assert slot == env
        self.slots.fields["row"][env] = row

    def settle(self, step: Step) -> None:
        """Each env that made a transition has paid its agent."""
        of, ended = self.slots.fields, step.ended
        moved = self._everyone
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
        """The actions of all envs, also of those that will ignore them."""
        return self._ask(self._rows, self._everyone)
