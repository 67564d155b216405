"""Stop rules: when an episode has lasted long enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

    def restart(self, envs: Iterable[int]) -> None:
        """An episode begins in these envs."""
        if self._unlimited:
            return
        for env in envs:
            self._due[env] = self._clock + self._limits[env]
        self._next = min(self._due)

    def tick(self) -> Sequence[int]:
        """One step was made: the envs whose episode has now reached its limit. Each is named once an episode."""
        self._clock += 1
        return () if self._clock < self._next else self._expire()

    def tick_one(self, env: int) -> Sequence[int]:
        """A step of this env alone was made, in the same tick: itself if its episode has now reached its limit."""
        self._due[env] -= 1
        return self._expire()

    def change(self, env: int, limit: int | None) -> None:
        """From its next episode on this env has another limit; none is going on in it."""
        self.stop([env])
        self._limits[env] = _NEVER if limit is None else limit
        self._unlimited = min(self._limits) == _NEVER

    def stop(self, envs: Iterable[int]) -> None:
        """No episode is going on in these envs."""
        if self._unlimited:
            return
        for env in envs:
            self._due[env] = _NEVER
        self._next = min(self._due)

    def _expire(self) -> list[int]:
        expired = [env for env, due in enumerate(self._due) if due <= self._clock]
        for env in expired:
            self._due[env] = _NEVER
        self._next = min(self._due)
        return expired
