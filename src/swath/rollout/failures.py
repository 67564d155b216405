"""Handling of envs that raise in a step or a reset; each user of the loop chooses one of three ways.

    Failures()       the first failure is raised
    Failures(2, …)   the env begins another episode and steps in it, so that every env has its row
    VoidRows(…)      the row of the env is void and its episode over; the env begins another one before the next step,
                     built again if the options say so

Envs that only step together fail together: their source is built again, and another episode begins in all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from swath.options import Restarts
from swath.rollout.hosts.base import EnvRaised, Host, Transition
from swath.rollout.spaces import Leaves

# Observations `[B, …]`, and the envs in which an episode has begun.
ResetResult: TypeAlias = tuple[Leaves, Sequence[int]]


class Failures:
    """Retries of envs that raise, up to a number of failures in a row.

    Args:
        allowed: how many failures of an env, without a successful step between them, are not raised.
        on_failure: called for each allowed failure.

    Attributes:
        in_a_row: failures by env since its last successful step.
    """

    def __init__(self, allowed: int = 0, on_failure: Callable[[int, Exception], None] = lambda *_: None) -> None:
        self._allowed, self._on_failure = allowed, on_failure
        self.in_a_row: Counter[int] = Counter()
        self._broken: set[int] = set()

    def count(self, host: Host, env: int, error: Exception, *, in_reset: bool = False) -> None:  # noqa: ARG002
        """Count a failure.

        Raises:
            EnvRaised: there are more failures than allowed.
        """
        counted = env if host.spec.steps_singly else 0
        self.in_a_row[counted] += 1
        self._broken.add(env)
        if self.in_a_row[counted] > self._allowed:
            self.in_a_row.clear()
            self._broken.clear()
            raise EnvRaised(env, error)
        self._on_failure(env, error)

    def begin(
        self, host: Host, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None
    ) -> ResetResult:
        """Begin episodes in these envs, or in all envs if the source has to be built again.

        Raises:
            EnvRaised: an env failed more often than allowed.
        """
        return self._retry(host, envs, partial(host.reset, envs, base, seeds))

    def begin_all(self, host: Host, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env, with one seed each or from their own random states.

        Raises:
            EnvRaised: an env failed more often than allowed.
        """
        begun_in, all_envs = None, range(host.spec.num_envs)
        while begun_in is None or (begun_in is not all_envs and seeds is not None):  # a rebuilt source needs its seeds
            leaves, begun_in = self._retry(host, all_envs, partial(host.reset_all, seeds))
        return leaves

    def handle_failed_step(self, host: Host, transition: Transition, before: Leaves) -> Transition:  # noqa: ARG002
        """Return the transition; the loop retries the step for the envs that are still in `failed`.

        Args:
            host: has made the step.
            transition: result of the step.
            before: observations `[B, …]` before the step.
        """
        if self.in_a_row and not transition.failed:
            self.in_a_row.clear()
        return transition

    def _retry(self, host: Host, envs: Sequence[int], reset: Callable[[], Leaves]) -> ResetResult:
        """Call `reset` until it succeeds or raises; envs that are broken are built again before."""
        while True:
            try:
                return self._rebuild_broken(host, envs) or (reset(), envs)
            except EnvRaised as raised:
                self.count(host, raised.env, raised.cause, in_reset=True)

    def _rebuild_broken(self, host: Host, envs: Sequence[int]) -> ResetResult | None:  # noqa: ARG002
        """Build the source again if envs that step together are broken, and return their first observations."""
        broken, self._broken = self._broken, set()
        rebuilds = broken and not host.spec.steps_singly
        return (host.rebuild(), range(host.spec.num_envs)) if rebuilds else None


class VoidRows(Failures):
    """Void rows of envs that raise; the other envs continue.

    A failure that is not allowed is kept in `fatal`: the other envs have made their step, so the caller raises it after
    the rows are written.

    Args:
        restarts: how often in a row an env is built again, and after which delays; `None`: no failure is allowed.
        replace_env: closes one env and builds another in its place; `None` if all envs are built together.
        new_seed: returns the seed for the first reset of an env that was built again.
        wait: sleeps for a number of seconds before an env is built again.

    Attributes:
        errors: envs and their errors; the reader removes what it has handled.
        fatal: the first failure that is not allowed.
        episodes_lost: a reset of some envs failed where all envs are built together, so no episode can continue.
        n_restarts: how often envs were built again.
    """

    def __init__(
        self,
        restarts: Restarts | None,
        replace_env: Callable[[int], None] | None,
        new_seed: Callable[[int], int | None],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self.errors: list[tuple[int, Exception]] = []
        self.fatal: EnvRaised | None = None
        self.n_restarts = 0
        self._restarts, self._replace_env, self._new_seed, self._wait = restarts, replace_env, new_seed, wait
        self.give_up_episodes()
        self._seeds: dict[int, int] = {}

    def set_seeds(self, seeds: Sequence[int] | None) -> None:
        """Set the seed of each env for its next reset."""
        self._seeds = dict(enumerate(seeds or ()))

    def give_up_episodes(self) -> None:
        """Give up all episodes, so that the next reset is of all envs, also of envs that reset within a step."""
        self._begun_in, self._leaves = set[int](), list[Any]()
        self._reset_all, self.episodes_lost = True, False

    def take_fatal(self) -> EnvRaised | None:
        """Return `fatal` and set it to `None`."""
        fatal, self.fatal = self.fatal, None
        return fatal

    def count(self, host: Host, env: int, error: Exception, *, in_reset: bool = False) -> None:
        """Count a failure.

        Raises:
            EnvRaised: the failure is not allowed, and happened in a reset.
        """
        self.errors.append((env, error))
        self.in_a_row[env] += 1
        if self._restarts is not None or (in_reset and not host.spec.steps_singly):
            self._broken.add(env)
        if self._restarts is not None:
            times, limit = self.in_a_row[env], self._restarts.max_per_worker
            if times <= limit:
                return
            error.add_note(f"the sub-env failed {times} times in a row; max_num_sub_environment_restarts={limit}")
        del self.in_a_row[env]
        self.fatal = self.fatal or EnvRaised(env, error)
        if in_reset:
            raise self.fatal

    def begin(self, host: Host, envs: Sequence[int], base: Leaves, seeds: Any = None) -> ResetResult:  # noqa: ARG002
        """Begin episodes in these envs, one after another where the host can.

        Raises:
            EnvRaised: an env failed; another call continues after the envs that have begun, unless `episodes_lost`.
        """
        if host.spec.steps_singly or (self._replace_env is not None and not self._reset_all):
            leaves = self._leaves if self._begun_in else base
            for env in sorted({*envs} - self._begun_in):
                leaves, _ = self._retry(host, [env], partial(self._reset, host, [env], leaves))
                self._leaves = leaves
                self._begun_in.add(env)
            self._begun_in.clear()
            return leaves, envs
        if self._reset_all:
            leaves, _ = self._retry(host, envs, partial(self._reset, host, envs, None))
            self._reset_all = False
            return leaves, envs
        try:
            return self._reset(host, envs, base), envs
        except EnvRaised as raised:
            self.episodes_lost = True
            self.count(host, raised.env, raised.cause, in_reset=True)
            raise

    def handle_failed_step(self, host: Host, transition: Transition, before: Leaves) -> Transition:
        """Return the transition with void rows for the envs that failed; their episodes are over."""
        if not transition.failed:
            self.in_a_row.clear()
            return transition
        self._reset_all, failed = not host.spec.steps_singly, dict(sorted(dict(transition.failed).items()))
        if self._reset_all:
            env, error = next(iter(failed.items()))
            failed = {env: error} | dict.fromkeys(range(host.spec.num_envs), error)
        self.in_a_row = Counter({env: self.in_a_row[env] for env in failed})
        for env, error in failed.items():
            self.count(host, env, error)
        observation = before if self._reset_all else transition.observation
        ends, void = transition.ends.without([*failed]).with_truncated(failed), sorted({*transition.void, *failed})
        return Transition(observation, transition.reward, ends, void, (), transition.info)

    def _reset(self, host: Host, envs: Sequence[int], base: Leaves | None) -> Leaves:
        """Begin episodes in these envs, or in all envs without `base`, with the seeds that are set."""
        seeds = [self._seeds.get(env) for env in envs] if self._seeds else None
        leaves = host.reset_all(seeds) if base is None else host.reset(envs, base, seeds)
        self._seeds = {env: seed for env, seed in self._seeds.items() if env not in envs}
        return leaves

    def _rebuild_broken(self, host: Host, envs: Sequence[int]) -> None:
        while broken := self._broken.intersection(envs):
            env = min(broken)
            if self._restarts is not None:
                self._wait(self._restarts.delay(self.in_a_row[env] + 1))
            self.n_restarts += 1
            rebuilt: Sequence[int] = [env]
            if self._replace_env is None or (self._reset_all and not host.spec.steps_singly):
                host.rebuild()
                rebuilt = range(host.spec.num_envs)
            else:
                try:
                    self._replace_env(env)
                except Exception as error:
                    raise EnvRaised(env, error) from error
            self._broken.difference_update(rebuilt)
            self._seeds |= {number: seed for number in rebuilt if (seed := self._new_seed(number)) is not None}
