"""The loop: the only place in the library that steps a host.

    stage.observation ──▶ policy ──▶ outputs ──▶ host.step ──▶ Step ──▶ yield ──▶ (consumer: buffer, observers, quota)
            ▲                                                                │
            └──────────── next episodes begin in the envs that ended ◀───────┘

Collectors take T steps, evaluators N episodes: they differ in how they consume `steps()`, never in how to step. All
that must outlast the generator is in the `Stage`, so that after an exception a new generator goes on from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol

from swath.rollout.hosts.base import Ends, EnvRaised, Host, Infos, Transition
from swath.rollout.spaces import Array, Leaves
from swath.rollout.until import Limit

Begin = Callable[[Sequence[int]], tuple[Sequence[int], Sequence[int | None] | None]]
"""Asked when episodes ended in these envs: which of them begin another (the rest retire), and with which seeds."""

MOST_FAILURES_IN_A_ROW = 3


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


def go_on(envs: Sequence[int]) -> tuple[Sequence[int], None]:
    """Every env begins another episode, from its own random state."""
    return envs, None


def never_forgive(env: int, error: Exception) -> None:
    """An env that raised ends the loop."""
    raise EnvRaised(env, error)


@dataclass(frozen=True)
class Rules:
    """What varies between users of the loop.

    Attributes:
        limit: most steps of an episode.
        begin: who begins another episode.
        forgive: asked about an env that raised; raises, or returns to have the env reset and stepped again.
    """

    limit: Limit
    begin: Begin
    forgive: Callable[[int, Exception], None]


def steps(host: Host, policy: Actor, stage: Stage, rules: Rules) -> Iterator[Step]:
    """Step for ever.

    Where it runs: in the thread that draws from it. An exception of the policy or, if `rules` do not forgive it, of an
    env leaves the generator; `stage` then stands where the last yielded step left it, and the envs may be a step ahead.
    """
    tick = rules.limit.tick
    while True:
        cut: Sequence[int] = ()
        if stage.due:
            cut = _begin_episodes(host, policy, stage, rules)
        observation = stage.observation
        outputs = policy(observation)
        moved = host.step(outputs)
        if moved.failed:
            cut = [env for env, _ in moved.failed]
            observation, outputs, moved = _stand_in(host, policy, rules, (observation, outputs, moved))
        ended = moved.ended
        if moved.void:
            rules.limit.stop(moved.void)
        expired = tick()
        if expired:
            ended = ended.cutting(expired)
        stage.observation = moved.observation
        if moved.void:
            policy.begin(moved.void)
            rules.limit.restart(moved.void)
        if ended.envs.size:
            stage.due = ended.envs.tolist()
        yield Step(observation, outputs, moved.observation, moved.reward, ended, moved.void, cut, moved.info)


def reset_all(host: Host, rules: Rules, seeds: Sequence[int] | None = None) -> Leaves:
    """Begin an episode in every env; anew in all of them, if need be built anew, where an env raises and is forgiven.

    Raises:
        EnvRaised: by an env that `rules` do not forgive, or for the third time in a row.
    """
    failures: Counter[int] = Counter()
    while True:
        try:
            fresh = host.rebuild() if failures and not host.spec.alone else None
            return host.reset_all(seeds) if fresh is None or seeds is not None else fresh
        except EnvRaised as raised:
            _forgive(host, rules, raised, failures)


def _begin_episodes(host: Host, policy: Actor, stage: Stage, rules: Rules) -> Sequence[int]:
    """Episodes where they are due; the envs whose episodes were given up for it."""
    envs, seeds = rules.begin(stage.due)
    if envs is not stage.due:
        _retire(host, rules, sorted(set(stage.due).difference(envs)))
    cut: Sequence[int] = ()
    if envs:
        before = stage.observation
        stage.observation, begun = _reset(host, rules, (envs, before, seeds))
        if not (host.spec.skips and stage.observation is before):  # else all of them begin within the next step
            policy.begin(begun)
            rules.limit.restart(begun)
        if begun is not envs:
            cut = sorted(set(begun).difference(envs))
    stage.due = ()
    return cut


def _retire(host: Host, rules: Rules, envs: Sequence[int]) -> None:
    if envs:
        host.retire(envs)
        rules.limit.stop(envs)


def _reset(
    host: Host, rules: Rules, what: tuple[Sequence[int], Leaves, Sequence[int | None] | None]
) -> tuple[Leaves, Sequence[int]]:
    """Begin episodes in these envs; in all of them, built anew, where an env raises and cannot be tried again alone."""
    failures: Counter[int] | None = None
    while True:
        try:
            if failures and not host.spec.alone:
                return host.rebuild(), range(host.spec.num_envs)
            return host.reset(*what), what[0]
        except EnvRaised as raised:
            failures = Counter() if failures is None else failures
            _forgive(host, rules, raised, failures)


def _forgive(host: Host, rules: Rules, raised: EnvRaised, failures: Counter[int]) -> None:
    """Go on, unless this env, or those that only step as a whole, failed for the third time in a row."""
    one = raised.env if host.spec.alone else 0
    failures[one] += 1
    if failures[one] == MOST_FAILURES_IN_A_ROW:
        raise raised
    rules.forgive(raised.env, raised.cause)


def _stand_in(
    host: Host, policy: Actor, rules: Rules, made: tuple[Leaves, Leaves, Transition]
) -> tuple[Leaves, Leaves, Transition]:
    """Give each env that failed another episode and this step in it, so that every env has its row."""
    observation, outputs, moved = made
    if not host.spec.alone:
        return _rebuild(host, policy, rules, moved.failed[0])
    for env, error in moved.failed:
        observation, outputs, moved = _retry(host, policy, rules, (observation, outputs, moved), (env, error))
    return observation, outputs, moved


def _retry(
    host: Host,
    policy: Actor,
    rules: Rules,
    made: tuple[Leaves, Leaves, Transition],
    failure: tuple[int, Exception],
) -> tuple[Leaves, Leaves, Transition]:
    observation, outputs, moved = made
    env, error = failure
    for _ in range(MOST_FAILURES_IN_A_ROW - 1):
        rules.forgive(env, error)
        try:
            observation = host.reset([env], observation)
        except EnvRaised as raised:
            error = raised.cause
            continue
        policy.rewind()
        policy.begin([env])
        rules.limit.restart([env])
        kept = _copies(outputs)  # the policy may answer in the same memory again
        outputs = _with_row(kept, policy(observation), env)
        again = host.step_one(env, outputs)
        if not again.failed:
            return observation, outputs, _merged(moved, again, env)
        error = again.failed[0][1]
    raise EnvRaised(env, error)


def _rebuild(
    host: Host, policy: Actor, rules: Rules, failure: tuple[int, Exception]
) -> tuple[Leaves, Leaves, Transition]:
    """Envs that only step as a whole all begin another episode, in a host that was built anew."""
    env, error = failure
    everyone = range(host.spec.num_envs)
    for _ in range(MOST_FAILURES_IN_A_ROW - 1):
        rules.forgive(env, error)
        try:
            observation = host.rebuild()
        except EnvRaised as raised:
            env, error = raised.env, raised.cause
            continue
        policy.rewind()
        policy.begin(everyone)
        rules.limit.restart(everyone)
        outputs = policy(observation)
        moved = host.step(outputs)
        if not moved.failed:
            return observation, outputs, moved
        env, error = moved.failed[0]
    raise EnvRaised(env, error)


def _merged(moved: Transition, again: Transition, env: int) -> Transition:
    ended = Ends.listed([*moved.ended.without([env]), *again.ended])
    return Transition(
        _with_row(_copies(moved.observation), again.observation, env),
        _with_row(_copies([moved.reward]), [again.reward], env)[0],
        ended,
        moved.void,
        moved.failed,
        _with_info(moved.info, again.info, env),
    )


def _with_info(infos: Infos, source: Infos, env: int) -> Infos:
    if isinstance(infos, Mapping) or isinstance(source, Mapping):
        return infos
    return [*infos[:env], source[env], *infos[env + 1 :]]


def _copies(leaves: Leaves) -> Leaves:
    return [deepcopy(leaf) for leaf in leaves]


def _with_row(leaves: Leaves, source: Leaves, env: int) -> Leaves:
    for leaf, new in zip(leaves, source, strict=True):
        leaf[env] = new[env]
    return leaves
