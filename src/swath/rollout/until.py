"""Stop rules: when an episode has lasted long enough."""

from __future__ import annotations

from collections.abc import Sequence

from swath.rollout.hosts.base import HostSpec

_NEVER = 1 << 62


class StepLimit:
    """Which of B envs reach their step limit now, at constant cost per step however many envs there are.

    Each env has the tick at which it is due; a step only compares the clock with the earliest of them.

    Args:
        limits: most steps of an episode, per env; `None` for no limit.
    """

    def __init__(self, limits: Sequence[int | None]) -> None:
        self._limits = [_NEVER if limit is None else limit for limit in limits]
        self._clock = 0
        self._due = list(self._limits)
        self._next = min(self._due)
        self._unlimited = self._next == _NEVER

    @classmethod
    def of(cls, spec: HostSpec, most: int | None = None) -> StepLimit:
        """The limits of these envs, none of which exceeds `most`."""
        both = [(own, most) for own in spec.limits or [None] * spec.num_envs]
        return cls([min((limit for limit in each if limit is not None), default=None) for each in both])

    def restart(self, envs: Sequence[int]) -> None:
        """An episode begins in these envs."""
        if not self._unlimited:
            self._expect({env: self._clock + self._limits[env] for env in envs})

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

    def _expect(self, due: dict[int, int]) -> None:
        for env, at in due.items():
            self._due[env] = at
        self._next = min(self._due)
