"""The loop: the only place in the library that steps a host.

    state.observation ──▶ policy ──▶ outputs ──▶ host.step ──▶ Step ──▶ yield ──▶ (consumer: buffer, observers, quota)
            ▲                                                                │
            └──────────── next episodes begin in the envs that ended ◀───────┘

Collectors take T steps, evaluators N episodes: both consume the generator `steps()`. The `LoopState` holds all that
outlasts a generator, so that a new generator continues after an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from swath.rollout.failures import Failures
from swath.rollout.hosts.base import NO_ENDS, DeviceEnds, Ends, Host, HostSpec, Infos, Transition
from swath.rollout.memory import copy_leaf
from swath.rollout.spaces import Leaves

# A deadline that is never reached.
_NEVER = 1 << 62


class Actor(Protocol):
    """A policy that is bound to a host: leaves of observations in, leaves of outputs out."""

    @property
    def has_state(self) -> bool:
        """Tell whether it has recurrent state."""

    def __call__(self, observation: Leaves) -> Leaves:
        """Return action leaves, then the policy's other outputs, `[B, …]` each; the next call may overwrite them."""

    def begin(self, envs: Any) -> None:
        """Reset the recurrent state of the envs, or of a mask `[B]` of envs, where an episode begins."""

    def rewind(self) -> None:
        """Restore the recurrent state before the last call, whose outputs were not used."""


@dataclass(slots=True)
class Step:
    """One step of B envs.

    Attributes:
        observation: leaves `[B, …]`, the input of the policy.
        outputs: leaves `[B, …]`, the output of the policy, action leaves first.
        next_observation: leaves `[B, …]` that the step led to; at an end the true last observation.
        reward: float array or tensor `[B]`; `None` if it is only read once per fragment.
        ends: episodes that ended with this step.
        void: envs whose row is no transition.
        truncated_before: envs that failed, so that their episode was truncated with the step *before* this one.
        info: the info dicts of the envs.
        device_ends: ends that were not read, in place of `ends` and `void`; then `next_observation` is what the env
            returned, also at an end.
    """

    observation: Leaves
    outputs: Leaves
    next_observation: Leaves
    reward: Any
    ends: Ends
    void: Sequence[int]
    truncated_before: Sequence[int]
    info: Infos = ()
    device_ends: DeviceEnds | None = None


NO_STEP = Step([], [], [], None, NO_ENDS, (), ())


@dataclass(slots=True)
class LoopState:
    """The state of B envs between two steps.

    Attributes:
        observation: leaves `[B, …]`, the next input of the policy.
        ended_envs: envs whose episode ended, and whose next episode has not begun.
    """

    observation: Leaves
    ended_envs: Sequence[int] = ()


class StepLimit:
    """Step limits of B envs, checked at constant cost per step for any number of envs.

    Each env has a deadline in ticks; a step compares the clock with the earliest deadline only.

    Args:
        spec: properties of the envs; `spec.limits` is read when an episode begins, since users may change limits.
        common: step limit of all envs, or `None`.
    """

    def __init__(self, spec: HostSpec, common: int | None = None) -> None:
        self._common, self._limits, envs = _NEVER if common is None else common, spec.limits, range(spec.num_envs)
        self._unlimited = common is None and not self._limits
        self._clock, self._deadlines = 0, [self._max_steps(env) for env in envs]
        self._next = min(self._deadlines)

    def restart(self, envs: Sequence[int]) -> None:
        """Count from 0 in these envs, where an episode has begun."""
        if not self._unlimited:
            self._set_deadlines({env: self._clock + self._max_steps(env) for env in envs})

    def tick(self) -> Sequence[int]:
        """Count a step, and return the envs whose episode has reached its limit, once per episode."""
        self._clock += 1
        if self._clock < self._next:
            return ()
        expired = [env for env, deadline in enumerate(self._deadlines) if deadline <= self._clock]
        self.stop(expired)
        return expired

    def stop(self, envs: Sequence[int]) -> None:
        """Stop counting in these envs, until `restart`."""
        if not self._unlimited:
            self._set_deadlines(dict.fromkeys(envs, _NEVER))

    def _max_steps(self, env: int) -> int:
        """Return the step limit of an episode that begins in this env."""
        limit = self._limits[env] if self._limits else None
        return self._common if limit is None else min(limit, self._common)

    def _set_deadlines(self, deadlines: dict[int, int]) -> None:
        for env, deadline in deadlines.items():
            self._deadlines[env] = deadline
        self._next = min(self._deadlines)


def restart_all(envs: Sequence[int]) -> tuple[Sequence[int], None]:
    """Begin another episode in every env, from its own random state."""
    return envs, None


@dataclass(frozen=True)
class Rules:
    """The rules of a loop, which its users choose.

    Attributes:
        limit: the step limit of episodes.
        begin: a function of the envs whose episodes ended: returns which of them begin another episode, with which
            seeds; the others retire.
        failures: handles envs that raise.
    """

    limit: StepLimit
    begin: Callable[[Sequence[int]], tuple[Sequence[int], Sequence[int | None] | None]]
    failures: Failures


def steps(
    host: Host, policy: Actor, state: LoopState, rules: Rules, goes_on: Callable[[], bool] | None = None
) -> Iterator[Step]:
    """Yield one step after another, without end.

    With `goes_on`, the policy acts ahead: it first yields `NO_STEP` when the first step has begun, and then each step
    when the next one has begun; the last step is the one after which `goes_on` returns false.

    Runs in the thread that draws from it. An exception of the policy, or of an env beyond what `rules.failures` allows,
    leaves the generator; then `state` is the one after the last step that was yielded, and the envs may be a step
    ahead.
    """
    limit, failures = rules.limit, rules.failures
    begins_all = rules.begin is restart_all
    resets_in_step = host.spec.next_step_autoreset and begins_all  # these rows are void
    reads_ends = not (host.spec.autoresets and begins_all)
    step = NO_STEP
    while True:
        truncated_before: Sequence[int] = ()
        if state.ended_envs:
            truncated_before = _begin_episodes(host, policy, state, rules)
        observation = state.observation
        outputs = policy(observation)
        if goes_on is not None:
            outputs = [*map(copy_leaf, outputs)]  # the next call may overwrite them
            host.send(outputs)
            yield step
        transition = host.step(outputs)
        reported_ends = transition.ends
        transition = failures.handle_failed_step(host, transition, observation)
        if transition.failed:
            truncated_before = [env for env, _ in transition.failed]
            observation, outputs, transition = _retry_step(host, policy, rules, observation, outputs, transition)
        ends, void, next_observation = transition.ends, transition.void, transition.observation
        if (device_ends := transition.device_ends) is not None:
            if not reads_ends:
                _begin_on_device(policy, device_ends, resets_in_step=resets_in_step)
                state.observation, info = next_observation, transition.info
                step = Step(observation, outputs, next_observation, transition.reward, ends, (), truncated_before, info)
                step.device_ends = device_ends
                yield step
                continue
            ends, void = device_ends.read()
            next_observation = device_ends.true_observation(next_observation) if ends.envs.size else next_observation
        expired = limit.tick()
        if void or expired:
            ends = _apply_limits(policy, limit, ends, expired, void)
        state.observation = transition.observation
        if ends.envs.size and not (resets_in_step and ends is reported_ends):
            state.ended_envs = ends.envs.tolist()
        reward, info = transition.reward, transition.info
        step = Step(observation, outputs, next_observation, reward, ends, void, truncated_before, info)
        if goes_on is None or not goes_on():
            yield step


def _apply_limits(policy: Actor, limit: StepLimit, ends: Ends, expired: Sequence[int], void: Sequence[int]) -> Ends:
    """Return the ends with episodes truncated that have reached their limit; others begin where rows are void."""
    if void:
        expired = [env for env in expired if env not in void]
        policy.begin(void)
        limit.restart(void)
    return ends.with_truncated(expired) if expired else ends


def _begin_on_device(policy: Actor, ends: DeviceEnds, *, resets_in_step: bool) -> None:
    """Reset the recurrent state of the envs that have begun an episode, or will with the next step."""
    if policy.has_state:
        begins = ends.void if resets_in_step else ends.ended
        policy.begin(() if begins is None else begins)


def _begin_episodes(host: Host, policy: Actor, state: LoopState, rules: Rules) -> Sequence[int]:
    """Begin the next episodes, and return the envs whose running episodes were given up for it."""
    envs, seeds = rules.begin(state.ended_envs)
    retired, begun_in = sorted({*state.ended_envs}.difference(envs)), envs
    if retired:
        host.retire(retired)
        rules.limit.stop(retired)
    if envs:
        before = state.observation
        state.observation, begun_in = rules.failures.begin(host, envs, before, seeds)
        if not (host.spec.next_step_autoreset and state.observation is before):  # else the next step resets the envs
            policy.begin(begun_in)
            rules.limit.restart(begun_in)
    state.ended_envs = ()
    return () if begun_in is envs else sorted({*begun_in}.difference(envs))


def _retry_step(
    host: Host, policy: Actor, rules: Rules, observation: Leaves, outputs: Leaves, transition: Transition
) -> tuple[Leaves, Leaves, Transition]:
    """Begin another episode in each env that failed, and step these envs, so that every env has its row."""
    while transition.failed:
        (env, error), *others = transition.failed
        rules.failures.count(host, env, error)
        observation, begun_in = rules.failures.begin(host, [env], observation)
        policy.rewind()
        policy.begin(begun_in)
        rules.limit.restart(begun_in)
        if not host.spec.steps_singly:
            outputs = policy(observation)
            transition = host.step(outputs)
            continue
        outputs = [deepcopy(leaf) for leaf in outputs]  # the policy may return the same memory again
        for leaf, new in zip(outputs, policy(observation), strict=True):
            leaf[env] = new[env]
        retried, reward = host.step(outputs, env), transition.reward.copy()
        reward[env] = retried.reward[env]
        ends = Ends.from_tuples([*transition.ends.without([env]), *retried.ends])
        failed = [*retried.failed, *others]
        transition = Transition(retried.observation, reward, ends, transition.void, failed, retried.info)
    rules.failures.in_a_row.clear()
    return observation, outputs, transition
