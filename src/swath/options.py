"""What users ask for, as frozen values that check themselves where they are built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan
from numbers import Real
from threading import TIMEOUT_MAX
from typing import Any, Literal, get_args

OnEnvError = Literal["raise", "reset", "restart"]
TrajFormat = Literal["padded", "cat"]


def count(name: str, value: object, *, least: int | None = 1) -> int:
    """The value as an int of at least `least`; `None` for any int.

    Raises:
        ValueError: it is not an integer, or too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        wanted = "an integer" if least is None else f"an integer of at least {least}"
        raise ValueError(f"{name}={value!r} is of type {type(value).__name__}; it must be {wanted}")
    number = int(value.__index__())
    if least is not None and number < least:
        raise ValueError(f"{name}={number} must be at least {least}")
    return number


def seconds(name: str, value: object) -> float:
    """A time to wait, as a number that every wait of the system takes.

    Raises:
        ValueError: it is no number, negative, or not finite: nothing waits for ever.
    """
    number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else nan
    if not 0 <= number < inf:
        raise ValueError(f"{name}={value!r} must be a finite number of seconds, 0 or more")
    return min(number, TIMEOUT_MAX)


def one_of(name: str, value: str, allowed: Any) -> None:
    """Raise `ValueError` unless the value is one of a `Literal`'s."""
    choices = get_args(allowed)
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")


@dataclass(frozen=True)
class Restarts:
    """How often workers that died are replaced.

    Every death counts, whatever its cause: also that of a replacement which cannot be built, or is not ready in time.
    Waiting for room does not count.

    The first replacement of a worker is immediate, the n-th waits `min(backoff_max_s, backoff_s · 2ⁿ⁻²)` seconds.

    Attributes:
        max_per_worker: replacements of one worker.
        max_total: of all workers together; `None` for no limit of that kind.
        backoff_s: seconds before the second replacement.
        backoff_max_s: most seconds before any.
        forgive_after_s: a life of as many seconds clears the worker's count; `None` for never.
    """

    max_per_worker: int = 3
    max_total: int | None = None
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    forgive_after_s: float | None = 600.0

    def __post_init__(self) -> None:
        count("max_per_worker", self.max_per_worker, least=0)
        if self.max_total is not None:
            count("max_total", self.max_total, least=0)
        seconds("backoff_s", self.backoff_s)
        seconds("backoff_max_s", self.backoff_max_s)
        if self.forgive_after_s is not None:
            seconds("forgive_after_s", self.forgive_after_s)

    def delay(self, number: int) -> float:
        """Seconds before a worker's `number`-th replacement, from 1."""
        return 0.0 if number < 2 else min(self.backoff_max_s, self.backoff_s * 2.0 ** min(number - 2, 1000))


def deadline(name: str, value: object) -> float | None:
    """A deadline in seconds, more than 0; `None` for none.

    Raises:
        ValueError: it is no number, not positive, or not finite.
    """
    if value is None:
        return None
    number = seconds(name, value)
    if number == 0:
        raise ValueError(f"{name}={value!r} must be more than 0 seconds, or None for no deadline")
    return number


RESTARTS = Restarts()
"""How often workers are replaced unless somebody says otherwise."""


@dataclass(frozen=True)
class Survival:
    """What a fleet of workers does to go on.

    Attributes:
        restarts: how often workers are replaced.
        min_workers: with fewer that live or are coming back the run ends; `None` means all.
        fragment_timeout_s: a fragment that takes longer is a death; `None` for no deadline.
        placement_timeout_s: seconds for the first workers to be ready, and for a replacement once it has been placed;
            `None` for no deadline.
        start_timeout_s: seconds for a worker to be ready once it has been placed, which alone `placement_timeout_s` is
            for then; `None`: that is for both.
        waits_for_room: whether a replacement waits for a place without end, which counts against nobody and is logged
            once a minute; else one that is not placed after `placement_timeout_s` is a death.
        names: what users call these settings, where it is not as here.
    """

    restarts: Restarts = RESTARTS
    min_workers: int | None = None
    fragment_timeout_s: float | None = 600.0
    placement_timeout_s: float | None = 300.0
    start_timeout_s: float | None = None
    waits_for_room: bool = True
    names: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.restarts, Restarts):
            raise TypeError(
                f"restarts is of type {type(self.restarts).__name__}; give Restarts(…), which says how often"
            )
        if self.min_workers is not None:
            count("min_workers", self.min_workers)
        deadline("fragment_timeout_s", self.fragment_timeout_s)
        deadline("placement_timeout_s", self.placement_timeout_s)
        deadline("start_timeout_s", self.start_timeout_s)

    def said(self, setting: str) -> str:
        """A deadline as its user knows it, for messages: `name=value`."""
        value: float | None = getattr(self, setting)
        return f"{self.names.get(setting, setting)}={'None' if value is None else f'{value:g}'}"
