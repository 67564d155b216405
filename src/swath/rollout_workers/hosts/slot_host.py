"""A host whose observations become rows of policies, and whose steps become what slots are paid and how they end.

It is the loop's actor, too: each policy is asked once per step, for all slots that act next.

    LoneAgents   each env has one agent: env i is slot i         arrays [B, …] go on as they are
    ManyAgents   agents come and go: who is seen gets a slot     {agent: observation}, sorted by policy

The loop is handed no observations. An env whose observations do not fit has failed; where a filter raises, all envs
whose observations it was given have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from swath.rollout.hosts.base import ArrayHost, ArraySpec, EnvRaised, Transition
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.episode import Episode
from swath.rollout_workers.metrics import PerfStats
from swath.rollout_workers.sampling.slots import Slots


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
    """

    announce: Callable[[int], None]
    explore: bool | None = None
    version = 0

    def __init__(self, inner: ArrayHost, slots: Slots, perf: PerfStats) -> None:
        self.inner, self.slots, self._perf = inner, slots, perf
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
        self._raw, failed = moved.observation or self._raw, dict(moved.failed)
        envs = self._everyone
        if failed:
            envs = np.delete(envs, [*failed] if self.spec.alone else envs)
        failed |= self._observe(envs, moved.info)
        self._perf.lap("raw_obs_processing")
        return Transition([], moved.reward, moved.ended, moved.void, list(failed.items()), moved.info)

    def __call__(self, observation: Leaves) -> Leaves:  # noqa: ARG002  it is in the rows of policies
        """Actions as the inner host takes them. Where one policy raises, no agent has acted."""
        self._perf.lap("env_wait")
        while self._begun_in:
            self.announce(self._begun_in.pop(0))
        return self.act()

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

    @abstractmethod
    def enter(self, episode: Episode) -> None:
        """An episode is about to begin."""

    @abstractmethod
    def act(self) -> Leaves:
        """The actions of all who act next."""

    def flush(self) -> None:  # noqa: B027  others write at once
        """Write down what is known of transitions that have ended."""

    @abstractmethod
    def settle(self, step: Step) -> Array:
        """Write down what slots were paid and how they ended; those whose transitions end with the step."""

    @abstractmethod
    def said(self, env: int) -> Mapping[Any, Mapping[str, Any]]:
        """What an env said last to each agent of the running episode."""

    @abstractmethod
    def info_in(self, infos: Any, env: int, agent: Any) -> Mapping[str, Any]:
        """What an env said to an agent, of all that was said in a step."""

    @abstractmethod
    def _observe(self, envs: Array, infos: Any) -> dict[int, Exception]:
        """Keep what these envs have shown, in a step if there are infos, else in a reset; who failed by it, and why."""

    def _begun(self, envs: Array) -> Leaves:
        for env, error in self._observe(envs, None).items():
            raise EnvRaised(env, error) from error
        return []
