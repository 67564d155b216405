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
from typing import Any

import numpy as np

from swath.rollout.hosts.base import ArrayHost, ArraySpec, EnvRaised, Transition
from swath.rollout.hosts.returned import info_of
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.episode import LONE_AGENT, Episode
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.policy_rows import PolicyRows
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
        moved: Which = slice(None)
        if step.void:
            ended, moved = ended.without(step.void), np.delete(self._everyone, step.void)
        if ended:
            of["terminated"][ended.envs], of["truncated"][ended.envs] = ended.terminated, ended.truncated
        of["step"][moved] = self.slots.steps
        if any(step.info):
            self.slots.infos[self.slots.steps] = step.info
        self.slots.close(moved, step.reward[moved])

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
