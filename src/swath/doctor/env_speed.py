"""How fast an env is alone, and what takes the time around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from swath.collect.rate import frames_per_second
from swath.doctor.finding import Finding, Level
from swath.doctor.subject import Subject, is_walkable, size_of
from swath.doctor.use import STEPS, collector_of, together
from swath.doctor.walk import walk
from swath.doctor.watchdog import heard

MOST_RESETTING = 0.5
SLOW_RESET_S = 0.001
FEWEST_RESETS = 5
BATCH_S = 5.0
"""About how long a batch may take."""


@dataclass(frozen=True)
class Pace:
    """Frames per second.

    Attributes:
        env: of the env alone, one of it, stepped by hand; `None` where it cannot be.
        resetting: which part of that time resets take.
        reset_seconds: how long one of them takes, the median; 0 if there were too few to tell.
        envs: how many a `Collector` stepped together.
        random: of it with random actions.
        policy: of it with the policy; `None` without one.
    """

    env: float | None
    resetting: float
    reset_seconds: float
    envs: int
    random: float
    policy: float | None = None

    @property
    def policy_share(self) -> float | None:
        """Which part of a collector's time the policy takes."""
        return None if self.policy is None else max(0.0, 1 - self.policy / self.random)

    def figures(self) -> dict[str, float]:
        """What is known, by name."""
        named = {
            "env_frames_per_second": self.env,
            "resetting_share": None if self.env is None else self.resetting,
            "collector_envs": self.envs,
            "collector_frames_per_second": self.random,
            "policy_frames_per_second": self.policy,
            "policy_share": self.policy_share,
        }
        return {name: round(value, 3) for name, value in named.items() if value is not None}


def measure_pace(subject: Subject) -> Pace:
    """Time the env alone, then with a collector around it, in this process."""
    env = subject.make()
    try:
        alone: tuple[float | None, float, float] = (None, 0.0, 0.0)
        if is_walkable(env):
            alone = _alone(env, subject)
        copies = together(env, subject)
        envs = copies or size_of(env)
    finally:
        subject.done_with(env)
    acts = subject.has_policy
    frames = envs * steps_of_a_batch(alone[0], envs)
    random = _collected(subject, copies, envs, frames, acts=False)
    return Pace(*alone, envs, random, _collected(subject, copies, envs, frames, acts=True) if acts else None)


def check_pace(pace: Pace) -> Iterator[Finding]:
    """Resets that take most of the time."""
    if pace.resetting > MOST_RESETTING and pace.reset_seconds > SLOW_RESET_S:
        yield Finding(
            Level.WARNING,
            "resets",
            f"take {pace.resetting:.0%} of the env's time, {pace.reset_seconds * 1000:.3g} ms each",
            f"less than {MOST_RESETTING:.0%}",
            "build in __init__ what does not change from episode to episode, and only set values in reset",
        )


def _alone(env: Any, subject: Subject) -> tuple[float, float, float]:
    spent: dict[str, list[float]] = {"reset": [], "step": []}
    for moment in walk(env, subject.effort, subject.seed):
        spent[moment.call].append(moment.seconds)
    resets, steps = spent["reset"], spent["step"]
    whole = sum(resets) + sum(steps)
    typical = median(resets) if len(resets) >= FEWEST_RESETS else 0.0
    return len(steps) * size_of(env) / whole, sum(resets) / whole, typical


def steps_of_a_batch(rate: float | None, envs: int) -> int:
    """Fewer for a slow env.

    Args:
        rate: frames per second of the env alone, if known.
        envs: how many are stepped together.
    """
    return STEPS if rate is None else max(1, min(STEPS, int(rate * BATCH_S / envs)))


def _collected(subject: Subject, copies: int | None, envs: int, frames: int, *, acts: bool) -> float:
    collector, effort = collector_of(subject, copies, frames, acts=acts), subject.effort
    try:
        return frames_per_second(heard(collector), effort.seconds, effort.steps * envs)
    finally:
        collector.shutdown(close_env=not subject.is_instance)
