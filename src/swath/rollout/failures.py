"""What becomes of envs that raise, in a step or in a reset; each user of the loop chooses.

    Failures()       the first failure is raised
    Failures(2, …)   that env begins another episode and makes the step in it, so that every env has its row
    VoidRows(…)      its row is void and its episode over; it begins another before the next step, built anew if asked

Envs that only step together fail together: another episode of theirs begins in a source that is built anew.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from swath.options import Restarts
from swath.rollout.hosts.base import EnvRaised, Host, Infos, Transition
from swath.rollout.spaces import Leaves

# Observations `[B, …]`, and the envs in which an episode has begun.
Begun: TypeAlias = tuple[Leaves, Sequence[int]]


class Failures:
    """Envs that raise try again, but only so often in a row.

    Args:
        allowed: how many failures of an env, without a good step between them, are not raised.
        on_failure: called for each of these.

    Attributes:
        in_a_row: failures by env since its last good step.
    """

    def __init__(self, allowed: int = 0, on_failure: Callable[[int, Exception], None] = lambda *_: None) -> None:
        self._allowed, self._on_failure = allowed, on_failure
        self.in_a_row: Counter[int] = Counter()
        self._broken: set[int] = set()

    def count(self, host: Host, env: int, error: Exception, *, in_reset: bool = False) -> None:  # noqa: ARG002
        """Count a failure.

        Raises:
            EnvRaised: it is one too many.
        """
        one = env if host.spec.alone else 0
        self.in_a_row[one] += 1
        self._broken.add(env)
        if self.in_a_row[one] > self._allowed:
            self.in_a_row.clear()
            self._broken.clear()
            raise EnvRaised(env, error)
        self._on_failure(env, error)

    def begin(self, host: Host, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Begun:
        """Begin episodes in these envs, or in all of them where the source must be built anew.

        Raises:
            EnvRaised: an env failed once too often.
        """
        return self._tried(host, envs, partial(host.reset, envs, onto, seeds))

    def begin_all(self, host: Host, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env, with one seed each or from their own states.

        Raises:
            EnvRaised: an env failed once too often.
        """
        begun, everyone = None, range(host.spec.num_envs)
        while begun is None or (begun is not everyone and seeds is not None):  # a rebuilt source gets its seeds, too
            leaves, begun = self._tried(host, everyone, partial(host.reset_all, seeds))
        return leaves

    def judged(self, host: Host, moved: Transition, before: Leaves) -> Transition:  # noqa: ARG002
        """A step that was made: what is still `failed` in it is to be made again, in other episodes."""
        if self.in_a_row and not moved.failed:
            self.in_a_row.clear()
        return moved

    def _tried(self, host: Host, envs: Sequence[int], reset: Callable[[], Leaves]) -> Begun:
        while True:
            try:
                return self._mended(host, envs) or (reset(), envs)
            except EnvRaised as raised:
                self.count(host, raised.env, raised.cause, in_reset=True)

    def _mended(self, host: Host, envs: Sequence[int]) -> Begun | None:  # noqa: ARG002
        """Build anew what is broken; what was observed, if episodes have begun with it."""
        broken, self._broken = self._broken, set()
        rebuilds = broken and not host.spec.alone
        return (host.rebuild(), range(host.spec.num_envs)) if rebuilds else None


class VoidRows(Failures):
    """Envs that raise leave a void row, and the others go on.

    A failure that is not allowed is kept in `fatal`. The other envs have made their step then, so whoever steps raises
    it once the rows are written.

    Args:
        restarts: how often in a row an env is built anew, and after which delays; `None`: no failure is allowed.
        renew: closes one env and puts another in its place; `None` where they are only built all together.
        new_seed: of the first reset of an env that was built anew.

    Attributes:
        raised: what envs have raised since whoever reads it has emptied it.
        fatal: the first failure that is not allowed.
        lost: a reset of some envs failed where they are only built all together, so that no episode can go on.
        n_restarts: how often envs were built anew.
        wait: lets so many seconds pass before that.
        look: called with envs, the leaves that show them among others, and the infos of a step, or None after a reset;
            returns which of them have failed by what they showed, and how.
    """

    look: Callable[[Sequence[int], Leaves, Infos | None], dict[int, Exception]]

    def __init__(
        self, restarts: Restarts | None, renew: Callable[[int], None] | None, new_seed: Callable[[int], int | None]
    ) -> None:
        super().__init__()
        self.raised: list[tuple[int, Exception]] = []
        self.fatal: EnvRaised | None = None
        self.n_restarts = 0
        self.wait: Callable[[float], None] = time.sleep
        self._restarts, self._renew, self._new_seed = restarts, renew, new_seed
        self.start_over()
        self._seeds: dict[int, int] = {}

    def seed(self, seeds: Sequence[int] | None) -> None:
        """The next reset of each env gets its seed."""
        self._seeds = dict(enumerate(seeds or ()))

    def start_over(self) -> None:
        """All episodes are given up; the next reset is of all envs, also of those that begin by themselves."""
        self._begun, self._leaves = set[int](), list[Any]()
        self._whole, self.lost = True, False

    def count(self, host: Host, env: int, error: Exception, *, in_reset: bool = False) -> None:
        """Note a failure.

        Raises:
            EnvRaised: it is not allowed, and happened in a reset.
        """
        self.raised.append((env, error))
        self.in_a_row[env] += 1
        if self._restarts is not None or (in_reset and not host.spec.alone):
            self._broken.add(env)
        if self._restarts is not None:
            times, most = self.in_a_row[env], self._restarts.max_per_worker
            if times <= most:
                return
            error.add_note(f"the sub-env failed {times} times in a row; max_num_sub_environment_restarts={most}")
        del self.in_a_row[env]
        self.fatal = self.fatal or EnvRaised(env, error)
        if in_reset:
            raise self.fatal

    def begin(self, host: Host, envs: Sequence[int], onto: Leaves, seeds: Any = None) -> Begun:  # noqa: ARG002
        """Begin episodes in these envs, one after another where that can be.

        Raises:
            EnvRaised: one of them failed; to call it again resumes behind those that have begun, unless all is `lost`.
        """
        if host.spec.alone or (self._renew is not None and not self._whole):
            leaves = self._leaves if self._begun else onto
            for env in sorted({*envs} - self._begun):
                leaves, _ = self._tried(host, [env], partial(self._reset, host, [env], leaves))
                self._leaves = leaves
                self._begun.add(env)
            self._begun.clear()
            return leaves, envs
        if self._whole:
            leaves, _ = self._tried(host, envs, partial(self._reset, host, envs, None))
            self._whole = False
            return leaves, envs
        try:
            return self._reset(host, envs, onto), envs
        except EnvRaised as raised:
            self.lost = True
            self.count(host, raised.env, raised.cause, in_reset=True)
            raise

    def judged(self, host: Host, moved: Transition, before: Leaves) -> Transition:
        """The step with void rows for the envs that failed; their episodes are over."""
        everyone, failed = range(host.spec.num_envs), dict(moved.failed)
        good = [env for env in everyone if env not in failed] if failed else everyone
        if good and (host.spec.alone or not failed):
            failed |= self.look(good, moved.observation, moved.info)
        if not failed:
            self.in_a_row.clear()
            return moved
        self._whole, failed = not host.spec.alone, dict(sorted(failed.items()))
        if self._whole:
            env, error = next(iter(failed.items()))
            failed = {env: error} | dict.fromkeys(everyone, error)
        self.in_a_row = Counter({env: self.in_a_row[env] for env in failed})
        for env, error in failed.items():
            self.count(host, env, error)
        there = before if self._whole else moved.observation
        ended, void = moved.ended.without([*failed]).cutting(failed), sorted({*moved.void, *failed})
        return Transition(there, moved.reward, ended, void, (), moved.info)

    def _reset(self, host: Host, envs: Sequence[int], onto: Leaves | None) -> Leaves:
        """Begin episodes in these envs, or in all at once, with the seeds that they are still to get."""
        seeds = [self._seeds.get(env) for env in envs] if self._seeds else None
        leaves = host.reset_all(seeds) if onto is None else host.reset(envs, onto, seeds)
        if leaves is not onto:  # else their episodes begin within the next step
            for env, error in self.look(envs, leaves, None).items():
                raise EnvRaised(env, error) from error
        self._seeds = {env: seed for env, seed in self._seeds.items() if env not in envs}
        return leaves

    def _mended(self, host: Host, envs: Sequence[int]) -> None:
        while broken := self._broken.intersection(envs):
            env = min(broken)
            if self._restarts is not None:
                self.wait(self._restarts.delay(self.in_a_row[env] + 1))
            self.n_restarts += 1
            renewed: Sequence[int] = [env]
            if self._renew is None or (self._whole and not host.spec.alone):
                host.rebuild()
                renewed = range(host.spec.num_envs)
            else:
                try:
                    self._renew(env)
                except Exception as error:
                    raise EnvRaised(env, error) from error
            self._broken.difference_update(renewed)
            self._seeds |= {one: seed for one in renewed if (seed := self._new_seed(one)) is not None}
