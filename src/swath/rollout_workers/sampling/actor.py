"""A policy as the loop's actor: asked once per step, for all envs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from swath.rollout.hosts.base import ArraySpec
from swath.rollout.loop import Step
from swath.rollout.spaces import Array, Leaves
from swath.rollout_workers.actions import ActionProcessor, answered_actions
from swath.rollout_workers.batches.names import STATE_IN, ColumnNames
from swath.rollout_workers.episode import LONE_AGENT
from swath.rollout_workers.nests import leaves_of, nest_of, template_of
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.sampling.asking import Wants, asked
from swath.rollout_workers.sampling.memory import Before, States, arrays
from swath.rollout_workers.sampling.outputs import Layout

Form: TypeAlias = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of an array."""


class Watcher(Protocol):
    """Who wants to know when episodes begin, and can show them."""

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""

    def announce(self) -> None:
        """The policy is about to be asked for the first steps of episodes that have begun."""

    @property
    def episodes(self) -> list[Any]:
        """One per env."""


@dataclass(frozen=True)
class Surface:
    """What a policy sees and what envs get.

    Attributes:
        spec: of the host: observations as policies see them, actions as envs want them.
        observation_space: of what policies see.
        processor: from the policy's actions to those.
    """

    spec: ArraySpec
    observation_space: Any
    processor: ActionProcessor


@dataclass
class PolicyActor:
    """Asks a policy for the actions of B envs.

    Attributes:
        policy: a `Policy`.
        surface: what it sees, what envs get.
        laps: times the steps.
        info_of: gives what an env said with its latest observation.
        watcher: of episodes, if there is one.
        explore: whether actions are sampled.
        layout: which columns the outputs are; empty before the first step.
    """

    policy: Any
    surface: Surface
    laps: PerfStats
    info_of: Callable[[int], Mapping[str, Any]]
    watcher: Watcher | None = None
    explore: bool = True
    layout: Layout = field(default_factory=Layout)

    def __post_init__(self) -> None:
        spec, processor = self.surface.spec, self.surface.processor
        self._n = spec.num_envs
        self.wants = Wants.of(self.policy)
        self._states = States(self.policy.get_initial_state(), self._n)
        self._before = Before([np.zeros((self._n, *leaf.shape), leaf.dtype) for leaf in spec.action])
        self._forms: list[Form] | None = None
        self._template = template_of(spec.action_space)
        self._seen = template_of(self.surface.observation_space)
        self._processor = None if processor.changes_nothing else processor

    def __call__(self, observation: Leaves) -> Leaves:
        """Action leaves for the envs, then all else that is to be recorded; `[B, …]` each."""
        self.laps.lap("env_wait")
        if self.watcher is not None:
            self.watcher.announce()
        columns = {ColumnNames.OBS: nest_of(self._seen, observation), **self._shown()}
        columns |= {f"{STATE_IN}{i}": state for i, state in enumerate(self._states.nests)}
        answer, states, extras = asked(self.policy, self.wants, columns, self.explore, self._episodes())
        self.laps.lap("inference")
        raw = answered_actions(type(self.policy).__name__, self.surface.spec.action, answer, self._n)
        beside = list(extras.values())
        after = self._states.flat(states)
        outputs = [*self._processed(raw), *self._recorded(beside, after)]
        self._require_same([(leaf.shape, leaf.dtype) for leaf in outputs])
        if not self.layout.parts:
            self._lay_out(extras)
        self._states.leaves = after
        self.laps.lap("action_processing")
        return outputs

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""
        self._states.begin(envs)
        if self.wants.before:
            self._before.begin(envs)
        if self.watcher is not None:
            self.watcher.begin(envs)

    def rewind(self) -> None:
        """Never asked for: the hosts of rollout workers make no step twice."""
        raise RuntimeError("the steps of a rollout worker are not taken back")

    def note(self, step: Step, rewards: Array) -> None:
        """A step was made, with these rewards after clipping."""
        if self.wants.before:
            n = len(self.surface.spec.action)
            skip = 0 if self._processor is None else n
            self._before.remember(step.outputs[skip : skip + n], rewards)
            if step.void:
                self._before.begin(step.void)

    def _require_same(self, forms: list[Form]) -> None:
        """Raise `ValueError` if an answer has not one row per env, another shape than the first, or a wider kind."""
        if self._forms is None:
            for shape, _ in forms:
                if shape[:1] != (self._n,):
                    raise ValueError(f"the policy answered an array of shape {shape} to {self._n} observations")
            self._forms = forms
        elif forms != self._forms and not _hold(self._forms, forms):
            now, before = ([(shape, str(dtype)) for shape, dtype in each] for each in (forms, self._forms))
            raise ValueError(f"the policy answered arrays of shapes and dtypes {now}; before they were {before}")

    def _processed(self, raw: Leaves) -> Leaves:
        """What envs get; the raw actions behind it, if they differ."""
        return raw if self._processor is None else [*self._processor(raw), *raw]

    def _recorded(self, extras: list[Any], after: Leaves) -> Leaves:
        """What is recorded beside actions."""
        leaves = [leaf for extra in extras for leaf in leaves_of(arrays(extra))]
        if self.wants.records_before:
            leaves += [*self._before.actions, self._before.rewards]
        return [*leaves, *self._states.leaves, *after]

    def _lay_out(self, extras: Mapping[str, Any]) -> None:
        layout = Layout(0 if self._processor is None else len(self.surface.spec.action))
        layout.add(ColumnNames.ACTIONS, self._template)
        for name, extra in extras.items():
            layout.add(name, extra)
        if self.wants.records_before:
            layout.add(ColumnNames.PREV_ACTIONS, self._template)
            layout.add(ColumnNames.PREV_REWARDS, None)
        layout.add_states(self._states.template)
        self.layout = layout

    def _shown(self) -> dict[str, Any]:
        """The optional columns that the policy is shown."""
        seen = self.wants.seen
        if not seen:
            return {}
        before = {
            ColumnNames.PREV_ACTIONS: nest_of(self._template, self._before.actions),
            ColumnNames.PREV_REWARDS: self._before.rewards,
            ColumnNames.INFOS: [self.info_of(env) for env in range(self._n)] if ColumnNames.INFOS in seen else None,
            ColumnNames.ENV_ID: np.arange(self._n),
            ColumnNames.AGENT_ID: np.array([LONE_AGENT] * self._n, dtype=object),
        }
        return {name: before[name] for name in seen}

    def _episodes(self) -> list[Any] | None:
        return None if self.watcher is None or not self.wants.episodes else self.watcher.episodes


def _hold(first: Sequence[Form], now: Sequence[Form]) -> bool:
    """Whether arrays of the first forms take these; float32 may follow float64, a float never an integer."""
    if [shape for shape, _ in first] != [shape for shape, _ in now]:
        return False
    return all(np.can_cast(given, kept, "same_kind") for (_, kept), (_, given) in zip(first, now, strict=True))
