"""Whether the same seed gives the same episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

import numpy as np

from swath.doctor.finding import Finding, Level
from swath.doctor.subject import Subject
from swath.doctor.walk import Moment, walk

MOST_STEPS = 300
Course = list[tuple[str, bytes]]
"""Calls, each with a digest of what it answered."""

RANDOM = (
    "call super().reset(seed=seed) in reset and draw from self.np_random only: not from random, numpy.random, a clock "
    "or the order of a set"
)


def check_seeds(subject: Subject) -> Iterator[Finding]:
    """The same walk twice, in two envs, and once more in the second."""
    one = subject.make()
    try:
        first = course(one, subject)
    finally:
        subject.done_with(one)
    two = subject.make()
    try:
        second, third = course(two, subject), course(two, subject)
    finally:
        subject.done_with(two)
    yield from compare(first, second, third)


def course(env: Any, subject: Subject) -> Course:
    """A walk in short."""
    effort = replace(subject.effort, steps=min(subject.effort.steps, MOST_STEPS))
    return [(moment.call, digest(moment)) for moment in walk(env, effort, subject.seed)]


def compare(first: Course, second: Course, third: Course) -> Iterator[Finding]:
    """What differs between a fresh env, another fresh one, and that one used again, all of one seed."""
    for twin, level, whose in (
        (second, Level.ERROR, "another env"),
        (third, Level.WARNING, "the same env, used again"),
    ):
        if at := parting(first, twin):
            yield Finding(
                level,
                "seeds",
                f"with the same seed and actions, {whose} differs at {at}",
                "the same observations, rewards and ends",
                RANDOM if level is Level.ERROR else f"reset all that an episode leaves behind; {RANDOM}",
            )
            return


def parting(one: Course, other: Course) -> str | None:
    """Where two walks part; one that was cut short by the clock parts nowhere."""
    steps = 0
    for mine, theirs in zip_longest(one, other):
        if mine is None or theirs is None:
            return None
        if mine != theirs:
            return f"step {steps + 1}" if steps or mine[0] == "step" else "the first reset"
        steps += mine[0] == "step"
    return None


def digest(moment: Moment) -> bytes:
    """Observation, reward and flags of an answer; what `info` says may differ."""
    told = blake2b(digest_size=16)
    _feed(told, moment.answer[:-1] if isinstance(moment.answer, tuple) else moment.answer)
    return told.digest()


def _feed(told: Any, value: Any) -> None:
    if isinstance(value, dict):
        for name in sorted(value, key=str):
            told.update(str(name).encode())
            _feed(told, value[name])
    elif isinstance(value, tuple | list):
        for part in value:
            _feed(told, part)
    else:
        array = np.asarray(value)
        told.update(repr(value).encode() if array.dtype.hasobject else array.tobytes())
