"""Stop rules: when an episode has lasted long enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swath.rollout.hosts.base import HostSpec
from swath.rollout.spaces import Array

_NEVER = 1 << 62


class StepLimit:
    """Which of B envs reach their step limit now, at constant cost per step however many envs there are.

    Each env has the tick at which it is due; a step only compares the clock with the earliest of them.

    Args:
        limits: most steps of an episode, per env; `None` for no limit.
    """

    def __init__(self, limits: Sequence[int | None]) -> None:
        self._limits = np.array([_NEVER if limit is None else limit for limit in limits])
        self._none = np.full_like(self._limits, _NEVER)
        self._clock, self._due, self._next = 0, self._limits.copy(), int(self._limits.min())
        self._unlimited = self._next == _NEVER

    @classmethod
    def of(cls, spec: HostSpec, most: int | None = None) -> StepLimit:
        """The limits of these envs, none of which exceeds `most`."""
        both = [(own, most) for own in spec.limits or [None] * spec.num_envs]
        return cls([min((limit for limit in each if limit is not None), default=None) for each in both])

    def restart(self, envs: Sequence[int]) -> None:
        """An episode begins in these envs."""
        self._put(envs, self._limits)

    def stop(self, envs: Sequence[int]) -> None:
        """No episode is going on in these envs."""
        self._put(envs, self._none)

    def tick(self) -> Sequence[int]:
        """One step was made: the envs whose episode has now reached its limit. Each is named once an episode."""
        self._clock += 1
        if self._clock < self._next:
            return ()
        expired: list[int] = (self._due <= self._clock).nonzero()[0].tolist()
        self._put(expired, self._none)
        return expired

    def _put(self, envs: Sequence[int], limits: Array) -> None:
        if not self._unlimited:
            at = [*envs]
            self._due[at] = self._clock + limits[at]
            self._next = int(self._due.min())
