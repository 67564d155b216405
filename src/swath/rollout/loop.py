"""The loop: the only place in the library that steps a host.

    stage.observation ──▶ policy ──▶ outputs ──▶ host.step ──▶ Step ──▶ yield ──▶ (consumer: buffer, observers, quota)
            ▲                                                                │
            └──────────── next episodes begin in the envs that ended ◀───────┘

Collectors take T steps, evaluators N episodes: they differ in how they consume `steps()`, never in how to step. All
that must outlast the generator is in the `Stage`, so that after an exception a new generator goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol

from swath.rollout.failures import Failures
from swath.rollout.hosts.base import Ends, Host, HostSpec, Infos, Transition
from swath.rollout.spaces import Array, Leaves

# No episode is to end.
_NEVER = 1 << 62


class Actor(Protocol):
    """A policy that is bound to a host: leaves of observations in, leaves of outputs out."""

    def __call__(self, observation: Leaves) -> Leaves:
        """Action leaves first, then the policy's other outputs, `[B, …]` each; the next call may overwrite them."""

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs: forget what was remembered of them."""

    def rewind(self) -> None:
        """Take the last call back, for the envs that begin next: their outputs were not used."""


@dataclass(slots=True)
class Step:
    """One step of B envs.

    Attributes:
        observation: leaves `[B, …]` that the policy saw.
        outputs: leaves `[B, …]` that it answered, action leaves first.
        next_observation: leaves `[B, …]` that the step led to; at an end the true last observation.
        reward: float array `[B]`.
        ended: episodes that ended with this step.
        void: envs whose row is no transition.
        cut: envs whose episode ended, truncated, with the step *before* this one, because the env failed.
        info: what the envs said beside.
    """

    observation: Leaves
    outputs: Leaves
    next_observation: Leaves
    reward: Array
    ended: Ends
    void: Sequence[int]
    cut: Sequence[int]
    info: Infos = ()


@dataclass(slots=True)
class Stage:
    """Where B envs stand between two steps.

    Attributes:
        observation: leaves `[B, …]` that the policy sees next.
        due: envs in which an episode ended and the next has not begun.
    """

    observation: Leaves
    due: Sequence[int] = ()


class StepLimit:
    """Which of B envs reach their step limit now, at constant cost per step however many envs there are.

    Each env has the tick at which it is due; a step only compares the clock with the earliest of them.

    Args:
        spec: the envs; their own limits are read when an episode begins, since users may change them.
        most: steps after which an episode ends in any env; `None` for no such limit.
    """

    def __init__(self, spec: HostSpec, most: int | None = None) -> None:
        self._most, self._own, envs = _NEVER if most is None else most, spec.limits, range(spec.num_envs)
        self._unlimited = most is None and not self._own
        self._clock, self._due = 0, [self._steps_left(env) for env in envs]
        self._next = min(self._due)

    def restart(self, envs: Sequence[int]) -> None:
        """Count from 0 in these envs, where an episode has begun."""
        if not self._unlimited:
            self._expect({env: self._clock + self._steps_left(env) for env in envs})

    def tick(self) -> Sequence[int]:
        """One step was made: the envs whose episode has now reached its limit. Each is named once an episode."""
        self._clock += 1
        if self._clock < self._next:
            return ()
        expired = [env for env, due in enumerate(self._due) if due <= self._clock]
        self.stop(expired)
        return expired

    def stop(self, envs: Sequence[int]) -> None:
        """No episode is going on in these envs."""
        if not self._unlimited:
            self._expect(dict.fromkeys(envs, _NEVER))

    def _steps_left(self, env: int) -> int:
        """Return how many steps an episode that begins in this env may take."""
        own = self._own[env] if self._own else None
        return self._most if own is None else min(own, self._most)

    def _expect(self, due: dict[int, int]) -> None:
        for env, at in due.items():
            self._due[env] = at
        self._next = min(self._due)


def go_on(envs: Sequence[int]) -> tuple[Sequence[int], None]:
    """Every env begins another episode, from its own random state."""
    return envs, None


@dataclass(frozen=True)
class Rules:
    """What varies between users of the loop.

    Attributes:
        limit: most steps of an episode.
        begin: asked when episodes ended in these envs: which of them begin another (the rest retire), and with which
            seeds.
        failures: what becomes of envs that raise.
    """

    limit: StepLimit
    begin: Callable[[Sequence[int]], tuple[Sequence[int], Sequence[int | None] | None]]
    failures: Failures


def steps(host: Host, policy: Actor, stage: Stage, rules: Rules) -> Iterator[Step]:
    """Step for ever.

    Where it runs: in the thread that draws from it. An exception of the policy, or one of an env that is not allowed,
    leaves the generator; `stage` then stands where the last yielded step left it, and the envs may be a step ahead.
    """
    limit, failures = rules.limit, rules.failures
    by_themselves = host.spec.skips and rules.begin is go_on  # episodes begin within the next step, where rows are void
    while True:
        cut: Sequence[int] = ()
        if stage.due:
            cut = _begin_episodes(host, policy, stage, rules)
        observation = stage.observation
        outputs = policy(observation)
        moved = host.step(outputs)
        said = moved.ended
        moved = failures.judged(host, moved, observation)
        if moved.failed:
            cut = [env for env, _ in moved.failed]
            observation, outputs, moved = _repeated(host, policy, rules, observation, outputs, moved)
        ended, void = moved.ended, moved.void
        expired = limit.tick()
        if void:
            expired = [env for env in expired if env not in void]
            policy.begin(void)
            limit.restart(void)
        if expired:
            ended = ended.cutting(expired)
        stage.observation = moved.observation
        if ended.envs.size and not (by_themselves and ended is said):
            stage.due = ended.envs.tolist()
        yield Step(observation, outputs, moved.observation, moved.reward, ended, void, cut, moved.info)


def _begin_episodes(host: Host, policy: Actor, stage: Stage, rules: Rules) -> Sequence[int]:
    """Episodes where they are due; the envs whose episodes were given up for it."""
    envs, seeds = rules.begin(stage.due)
    retired, begun = sorted({*stage.due}.difference(envs)), envs
    if retired:
        host.retire(retired)
        rules.limit.stop(retired)
    if envs:
        before = stage.observation
        stage.observation, begun = rules.failures.begin(host, envs, before, seeds)
        if not (host.spec.skips and stage.observation is before):  # else all of them begin within the next step
            policy.begin(begun)
            rules.limit.restart(begun)
    stage.due = ()
    return () if begun is envs else sorted({*begun}.difference(envs))


def _repeated(
    host: Host, policy: Actor, rules: Rules, seen: Leaves, outputs: Leaves, moved: Transition
) -> tuple[Leaves, Leaves, Transition]:
    """Give each env that failed another episode and this step in it, so that every env has its row."""
    while moved.failed:
        (env, error), *others = moved.failed
        rules.failures.count(host, env, error)
        seen, begun = rules.failures.begin(host, [env], seen)
        policy.rewind()
        policy.begin(begun)
        rules.limit.restart(begun)
        if not host.spec.alone:
            outputs = policy(seen)
            moved = host.step(outputs)
            continue
        outputs = [deepcopy(leaf) for leaf in outputs]  # the policy may answer in the same memory again
        for leaf, new in zip(outputs, policy(seen), strict=True):
            leaf[env] = new[env]
        again, reward = host.step(outputs, env), moved.reward.copy()
        reward[env] = again.reward[env]
        ended = Ends.listed([*moved.ended.without([env]), *again.ended])
        moved = Transition(again.observation, reward, ended, moved.void, [*again.failed, *others], again.info)
    rules.failures.in_a_row.clear()
    return seen, outputs, moved
