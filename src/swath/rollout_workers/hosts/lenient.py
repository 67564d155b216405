"""A host in which a failure of an env is a mark on its row, so that the other envs go on.

    step raises    ──▶ row void, episode over; the loop resets the env before its next step
    reset raises   ──▶ the env is made anew and reset again, or the error leaves; those reset before stay begun

What failed is in `failures`, and `fatal` is what is to be raised once the step is written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from swath.rollout.hosts.base import NO_ENDS, ArrayHost, EnvRaised, Transition
from swath.rollout.spaces import Leaves
from swath.rollout_workers.hosts.wrapping import WrappedHost

LONGEST_DELAY = 5.0
"""Seconds."""

_MOST_DOUBLINGS = 64
"""More would not fit into a float some day."""


@dataclass(frozen=True)
class Patience:
    """What is borne of sub-envs that raise.

    Attributes:
        restarts: how many failures in a row, without a good step between them, are answered with a new sub-env; None:
            none is, every failure is raised.
        delay: seconds before a sub-env is made anew, doubled with each failure in a row, up to 5 if it is less.
        wait: lets so many seconds pass.
    """

    restarts: int | None = None
    delay: float = 0.1
    wait: Callable[[float], None] = time.sleep

    @classmethod
    def of(cls, config: Any) -> Patience:
        """As an `AlgorithmConfig` says."""
        if not config.restart_failed_sub_environments:
            return cls()
        return cls(config.max_num_sub_environment_restarts, config.delay_between_sub_environment_restarts_s)

    def bears(self, in_a_row: int) -> bool:
        """Whether so many failures in a row are borne."""
        return self.restarts is not None and in_a_row <= self.restarts

    def pause(self, in_a_row: int) -> None:
        """Leave a sub-env alone that has failed so often in a row."""
        doublings = min(in_a_row - 1, _MOST_DOUBLINGS)
        self.wait(min(max(LONGEST_DELAY, self.delay), self.delay * 2**doublings))

    def note(self, error: Exception, in_a_row: int) -> None:
        """Tell in the error why it is raised, if others like it were borne."""
        if self.restarts is not None:
            error.add_note(
                f"the sub-env failed {in_a_row} times in a row without a good step; "
                f"max_num_sub_environment_restarts={self.restarts}"
            )


@dataclass(frozen=True)
class Failure:
    """An env raised.

    Attributes:
        env: which.
        error: what.
        in_step: whether in a step, so that an episode of it ended; else its reset raised.
    """

    env: int
    error: Exception
    in_step: bool


class LenientHost(WrappedHost):
    """An array host that outlives the failures of its envs.

    Args:
        inner: the envs.
        patience: what is borne.
        renew: closes one sub-env and puts another in its place; None where they are only made all together.
        new_seed: of the first reset of one that was made anew.
        seeds: of the envs' first resets; None seeds nothing.

    Attributes:
        failures: since they were last taken, in order.
        fatal: the failure to raise, if one was not borne.
        restarts: how often sub-envs were made anew.
    """

    def __init__(
        self,
        inner: ArrayHost,
        patience: Patience,
        renew: Callable[[int], None] | None,
        new_seed: Callable[[int], int | None],
        seeds: Sequence[int] | None,
    ) -> None:
        super().__init__(inner)
        self.failures: list[Failure] = []
        self.fatal: EnvRaised | None = None
        self.restarts = 0
        self._patience = patience
        self._renew, self._new_seed = renew, new_seed
        self.seed(seeds)
        self._in_a_row: dict[int, int] = {}
        self._broken: set[int] = set()
        self._begun: set[int] = set()
        self._reached: Leaves = []
        self._untouched, self._doomed = True, False

    def use(self, inner: ArrayHost) -> None:
        """Go on with another host of the same envs, whose episodes begin anew."""
        self.inner, self.spec = inner, inner.spec

    def seed(self, seeds: Sequence[int] | None) -> None:
        """The next reset of each env gets its seed; None seeds nothing."""
        self._seeds = dict(enumerate(seeds or ()))

    def start_over(self) -> None:
        """The next reset, which is of all envs, is a true one even where envs begin by themselves."""
        self._begun.clear()
        self._untouched, self._doomed = True, False

    def take_failures(self) -> list[Failure]:
        """What failed since the last call."""
        taken, self.failures = self.failures, []
        return taken

    def take_fatal(self) -> EnvRaised | None:
        """The failure to raise, which is then forgotten."""
        fatal, self.fatal = self.fatal, None
        return fatal

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:  # noqa: ARG002  seeds are here
        """Begin an episode in these envs.

        Raises:
            EnvRaised: an env raised, and that is not borne. To call it again resumes behind the envs that have begun.
        """
        if self._doomed:
            return onto
        if not self.spec.alone and self._untouched:
            self._reached = self._borne(range(self.spec.num_envs), self._begin_all)
        elif not self.spec.alone and self._renew is None:
            self._reached = self._begin_some(envs, onto)
        else:
            self._reached = self._one_by_one(envs, onto)
        return self._reached

    def step(self, action: Leaves) -> Transition:
        """Advance every env; the rows of those that raise are void, and their episodes over."""
        if self._doomed:
            return self._given_up()
        moved = self.inner.step(action)
        failed = {env for env, _ in moved.failed}
        if self._in_a_row:
            self._in_a_row = {env: n for env, n in self._in_a_row.items() if env in failed}
        if failed:
            moved = self._marked(moved, failed)
        self._reached = moved.observation
        return moved

    def _one_by_one(self, envs: Sequence[int], onto: Leaves) -> Leaves:
        leaves = self._reached if self._begun else onto
        for env in envs:
            if env not in self._begun:
                self._reached = leaves = self._borne([env], partial(self._begin, env, leaves))
                self._begun.add(env)
        self._begun = set()
        return leaves

    def _begin(self, env: int, onto: Leaves) -> Leaves:
        leaves = self.inner.reset([env], onto, [self._seeds.get(env)])
        self._seeds.pop(env, None)
        return leaves

    def _begin_all(self) -> Leaves:
        """A true reset of all envs of a host that steps as a whole; where only some have seeds, these once more."""
        n, seeds = self.spec.num_envs, self._seeds
        leaves = self.inner.reset_all([seeds[env] for env in range(n)] if len(seeds) == n else None)
        if 0 < len(seeds) < n:
            leaves = self.inner.reset([*seeds], leaves, [*seeds.values()])
        self._seeds = {}
        self._untouched = False
        return leaves

    def _begin_some(self, envs: Sequence[int], onto: Leaves) -> Leaves:
        """A reset in a host that is only made anew as a whole: if that is needed, the episodes of all are given up."""
        try:
            return self.inner.reset(envs, onto)
        except EnvRaised as raised:
            self._failed(Failure(raised.env, raised.cause, in_step=False))
        self._doomed = True
        self._raise_fatal()
        return onto

    def _borne(self, envs: Sequence[int], reset: Callable[[], Leaves]) -> Leaves:
        """What the reset of these gives, tried again with a new env as often as patience lasts."""
        while True:
            try:
                while broken := self._broken.intersection(envs):
                    self._mend(min(broken))
                return reset()
            except EnvRaised as raised:
                self._failed(Failure(raised.env, raised.cause, in_step=False))
            except Exception as error:  # noqa: BLE001  raised as its own type, or borne
                self._failed(Failure(envs[0], error, in_step=False))
            self._raise_fatal()

    def _raise_fatal(self) -> None:
        fatal = self.take_fatal()
        if fatal is not None:
            raise fatal from fatal.cause.__cause__

    def _mend(self, env: int) -> None:
        self._patience.pause(self._in_a_row.get(env, 1))
        self.restarts += 1
        whole = self._untouched and not self.spec.alone
        if whole or self._renew is None:
            self.inner.rebuild()
            renewed = set(range(self.spec.num_envs))
        else:
            self._renew(env)
            renewed = {env}
        self._broken -= renewed
        seeds = {env: self._new_seed(env) for env in sorted(renewed)}
        self._seeds.update({env: seed for env, seed in seeds.items() if seed is not None})

    def _failed(self, failure: Failure) -> None:
        """Note a failure, and whether it is borne."""
        env, error = failure.env, failure.error
        self.failures.append(failure)
        in_a_row = self._in_a_row[env] = self._in_a_row.get(env, 0) + 1
        if self._patience.restarts is not None or not (failure.in_step or self.spec.alone):
            self._broken.add(env)
        if self._patience.bears(in_a_row):
            return
        del self._in_a_row[env]
        if self.fatal is None:
            self._patience.note(error, in_a_row)
            self.fatal = EnvRaised(env, error)

    def _marked(self, moved: Transition, failed: set[int]) -> Transition:
        """The transition, with void rows for the envs that failed."""
        for env, error in moved.failed:
            self._failed(Failure(env, error, in_step=True))
        if not self.spec.alone:
            moved.observation, self._untouched = self._reached, True
        ended = moved.ended.without(sorted(failed)).cutting(failed)
        void = sorted({*moved.void, *failed})
        return Transition(moved.observation, moved.reward, ended, void, (), moved.info)

    def _given_up(self) -> Transition:
        """Instead of a step: all episodes are over, so that a whole new host can begin others."""
        self._doomed, self._untouched = False, True
        self._broken.add(0)
        everyone = list(range(self.spec.num_envs))
        return Transition(self._reached, np.zeros(len(everyone)), NO_ENDS.cutting(everyone), everyone)
