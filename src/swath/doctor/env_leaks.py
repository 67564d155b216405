"""Whether an env's memory grows for as long as it is stepped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from swath.doctor.finding import Finding, Level
from swath.doctor.growth import WINDOWS, Growth, measure
from swath.doctor.subject import Effort, Subject
from swath.doctor.walk import walk

MOST_SECONDS = 60.0


def check_leaks(subject: Subject) -> Iterator[Finding]:
    """Equal walks in one env, each from a reset on."""
    env = subject.make()
    try:
        effort = even(env, subject)
        yield from leaks(measure(lambda: consume(env, effort, subject.seed)), effort.steps)
    finally:
        subject.done_with(env)


def even(env: Any, subject: Subject) -> Effort:
    """As many steps as fit into the time of one look: a window must not be cut short by the clock."""
    steps = sum(moment.call == "step" for moment in walk(env, subject.effort, subject.seed))
    return replace(subject.effort, steps=steps, seconds=MOST_SECONDS)


def consume(env: Any, effort: Effort, seed: int) -> None:
    """Walk and keep nothing."""
    deque(walk(env, effort, seed), maxlen=0)


def leaks(growth: Growth, steps: int) -> Iterator[Finding]:
    """What a leak costs, if there is one."""
    size = growth.per_window
    if size:
        where = f"; most of it is allocated at {growth.where}" if growth.where else ", perhaps in what it calls"
        yield Finding(
            Level.ERROR,
            "memory of the env",
            f"grows by {size / 2**10:,.0f} KiB per {steps:,} steps, in each of {WINDOWS} equal windows",
            "memory that stays, once a few episodes have been played",
            f"empty in reset what episodes fill, or bound it, as collections.deque(maxlen=…) does{where}",
        )
