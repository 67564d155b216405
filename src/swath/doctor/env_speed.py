"""How fast an env is alone, and what takes the time around it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from swath.collect.shaping import valid_frames
from swath.doctor.finding import Finding, Level
from swath.doctor.subject import Subject, is_batched, is_walkable
from swath.doctor.use import collector_of, together
from swath.doctor.walk import walk

MOST_RESETTING = 0.5
SLOW_RESET_S = 0.001
FEWEST_RESETS = 5


@dataclass(frozen=True)
class Pace:
    """Frames per second.

    Attributes:
        env: of the env alone, one of it, stepped by hand; `None` where it cannot be.
        resetting: which part of that time resets take.
        reset_seconds: how long one of them takes, the median; 0 if there were too few to tell.
        random: of a `Collector` with random actions.
        policy: of one with the policy; `None` without one.
    """

    env: float | None
    resetting: float
    reset_seconds: float
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
        envs = together(env, subject)
    finally:
        subject.done_with(env)
    acts = subject.policy is not None or subject.policy_factory is not None
    random = _collected(subject, envs, acts=False)
    return Pace(*alone, random, _collected(subject, envs, acts=True) if acts else None)


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
    return len(steps) * (env.num_envs if is_batched(env) else 1) / whole, sum(resets) / whole, typical


def _collected(subject: Subject, envs: int | None, *, acts: bool) -> float:
    collector = collector_of(subject, envs, acts=acts)
    try:
        batches = iter(collector)
        next(batches)
        frames, spent, began = 0, 0.0, time.perf_counter()
        while not frames or (frames < subject.effort.steps * subject.envs and spent < subject.effort.seconds):
            frames += valid_frames(next(batches))
            spent = time.perf_counter() - began
        return frames / spent
    finally:
        collector.shutdown(close_env=not subject.is_instance)
