"""The loop over two halves of the envs: while the envs of one step, the policy acts for the other.

    half 0:  act ─ send ─▶ (envs step) ─▶ receive ─ act ─ send ─▶ (envs step) ─▶ …
    half 1:                 act ─ send ─▶ (envs step) ─▶ receive ─ act ─ send ─▶ …      ──▶ Step of all envs

The halves are joined step by step, so that buffer and delivery see the steps of one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from swath.rollout.hosts.base import Ends, EnvRaised, Host, HostSpec
from swath.rollout.loop import NO_STEP, LoopState, Rules, Step, steps
from swath.rollout.memory import concatenate
from swath.rollout.policies.binding import random_stand_in
from swath.rollout.policies.calling import BoundPolicy
from swath.rollout.spaces import Leaves


class Overlap:
    """Two halves of the envs of processes, which step while the policy acts for the other half.

    Args:
        halves: two hosts, with the rules of their loops.
    """

    def __init__(self, halves: Sequence[tuple[Host, Rules]]) -> None:
        self._halves = list(halves)
        self._policies, self._random_policies = list[BoundPolicy](), list[BoundPolicy]()
        self._middle = halves[0][0].spec.num_envs

    def act_with(self, bind: Callable[[Leaves, HostSpec], BoundPolicy], observation: Leaves) -> None:
        """Act with a policy, which takes over the recurrent state of the last one.

        Args:
            bind: binds it to the envs of a half, given an example of their observations.
            observation: leaves `[B, …]`, an example.
        """
        pairs = zip(self._halves, self._split(observation), strict=True)
        policies = [bind(rows, host.spec) for (host, _), rows in pairs]
        for policy, last in zip(policies, self._policies, strict=False):
            policy.take_over(last)
        self._policies = policies
        self._random_policies = [
            random_stand_in(host.spec, policy) for (host, _), policy in zip(self._halves, policies, strict=True)
        ]

    def begin(self) -> None:
        """Note that episodes have begun in all envs."""
        for (host, rules), policy in zip(self._halves, self._policies, strict=True):
            envs = range(host.spec.num_envs)
            policy.restart(envs)
            rules.limit.restart(envs)

    def renew_plans(self) -> None:
        """Make the plans of the policy again with the next call, if it has changed."""
        for policy in self._policies:
            policy.renew_plan()

    def steps(
        self, state: LoopState, n_steps: int, is_interrupted: Callable[[], bool], *, randomly: bool
    ) -> Iterator[Step]:
        """Yield up to `n_steps` steps of all envs; `state` is set before the last one is yielded.

        An exception leaves envs a step ahead: then all must be reset.

        Args:
            state: of all envs.
            n_steps: T.
            is_interrupted: tells, once per step, whether it is the last.
            randomly: whether actions are drawn at random.

        Raises:
            EnvRaised: an env failed, beyond what the rules allow.
            Exception: what the policy raised.
        """
        remaining, goes_on, middle = n_steps, True, self._middle
        ended = [e for e in state.ended_envs if e < middle], [e - middle for e in state.ended_envs if e >= middle]
        states = [*map(LoopState, self._split(state.observation), ended)]

        def decide() -> bool:
            nonlocal remaining, goes_on
            remaining -= 1
            goes_on = not is_interrupted() and remaining > 0
            return goes_on

        policies, asks = self._random_policies if randomly else self._policies, (decide, lambda: goes_on)
        loops = [
            steps(host, policy, stage, rules, ask)
            for (host, rules), policy, stage, ask in zip(self._halves, policies, states, asks, strict=True)
        ]
        parts, step = self._advance(loops), NO_STEP
        while True:
            before, parts = parts, self._advance(loops)
            step = self._join(parts, before, step)
            if not goes_on:
                break
            yield step
        first, second = states
        state.observation = step.next_observation
        state.ended_envs = [*first.ended_envs, *(middle + env for env in second.ended_envs)]
        yield step

    def _split(self, leaves: Leaves) -> Iterator[Leaves]:
        yield [leaf[: self._middle] for leaf in leaves]
        yield [leaf[self._middle :] for leaf in leaves]

    def _advance(self, loops: Sequence[Iterator[Step]]) -> list[Step]:
        """Return the next step of each half."""
        parts = list[Step]()
        for loop in loops:
            try:
                parts.append(next(loop))
            except EnvRaised as raised:
                raise EnvRaised(raised.env + self._middle * len(parts), raised.cause) from raised.cause
        return parts

    def _join(self, parts: Sequence[Step], before: Sequence[Step], last: Step) -> Step:
        """Return a step of all envs, given the last steps of the halves, and of all envs."""
        first, second = parts
        continues = all(part.observation is old.next_observation for part, old in zip(parts, before, strict=True))
        return Step(
            last.next_observation if continues else _rows(first.observation, second.observation),
            _rows(first.outputs, second.outputs),
            _rows(first.next_observation, second.next_observation),
            concatenate([first.reward, second.reward]),
            self._join_ends(first.ends, second.ends),
            [*first.void, *(self._middle + env for env in second.void)],
            [*first.truncated_before, *(self._middle + env for env in second.truncated_before)],
            _entries(first.info, second.info) if isinstance(first.info, Mapping) else (),
        )

    def _join_ends(self, first: Ends, second: Ends) -> Ends:
        if not second.envs.size:
            return first
        return Ends(
            np.concatenate([first.envs, second.envs + self._middle]),
            np.concatenate([first.terminated, second.terminated]),
            np.concatenate([first.truncated, second.truncated]),
        )


def _rows(first: Leaves, second: Leaves) -> Leaves:
    return [*map(concatenate, zip(first, second, strict=True))]


def _entries(first: Any, second: Any) -> Any:
    """Return the entries of infos, nested mappings of `[B]`, of both halves."""
    if isinstance(first, Mapping):
        return {name: _entries(value, second[name]) for name, value in first.items()}
    return np.concatenate([first, second])
