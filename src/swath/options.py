"""Options of users as frozen values, which are checked at construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan
from numbers import Real
from threading import TIMEOUT_MAX
from typing import Any, Literal, get_args

OnEnvError = Literal["raise", "reset", "restart"]
FinalObservation = Literal["required", "missing"]
TrajFormat = Literal["padded", "cat"]


def count(name: str, value: object, *, minimum: int | None = 1) -> int:
    """Return the value as an int of at least `minimum`.

    Raises:
        ValueError: no integer, or less than `minimum`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        expected = "an integer" if minimum is None else f"an integer of at least {minimum}"
        raise ValueError(f"{name}={value!r} is of type {type(value).__name__}; it must be {expected}")
    number = int(value.__index__())
    if minimum is not None and number < minimum:
        raise ValueError(f"{name}={number} must be at least {minimum}")
    return number


def seconds(name: str, value: object) -> float:
    """Return a time to wait, as a number that every wait of the system accepts.

    Raises:
        ValueError: no number, negative, or not finite.
    """
    number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else nan
    if not 0 <= number < inf:
        raise ValueError(f"{name}={value!r} must be a finite number of seconds, 0 or more")
    return min(number, TIMEOUT_MAX)


def positive(name: str, value: object) -> None:
    """Raise `ValueError` unless the value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ValueError(f"{name}={value!r} must be a finite number > 0")


def one_of(name: str, value: str, allowed: Any) -> None:
    """Raise `ValueError` unless the value is an argument of the `Literal` `allowed`."""
    choices = get_args(allowed)
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")


@dataclass(frozen=True)
class Restarts:
    """Limits of the replacement of workers that died.

    Every death counts: also a replacement that cannot be built, or is not ready in time. Waiting for room does not
    count.

    The first replacement of a worker is immediate, the n-th waits `min(backoff_max_s, backoff_s · 2ⁿ⁻²)` seconds.

    Attributes:
        max_per_worker: replacements of one worker.
        max_total: of all workers together; `None` for no limit.
        backoff_s: seconds before the second replacement.
        backoff_max_s: most seconds before any.
        forgive_after_s: seconds of a life after which the worker's count is 0 again; `None` for never.
    """

    max_per_worker: int = 3
    max_total: int | None = None
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    forgive_after_s: float | None = 600.0

    def __post_init__(self) -> None:
        count("max_per_worker", self.max_per_worker, minimum=0)
        if self.max_total is not None:
            count("max_total", self.max_total, minimum=0)
        seconds("backoff_s", self.backoff_s)
        seconds("backoff_max_s", self.backoff_max_s)
        if self.forgive_after_s is not None:
            seconds("forgive_after_s", self.forgive_after_s)

    def delay(self, number: int) -> float:
        """Return the seconds before a worker's `number`-th replacement, from 1."""
        return 0.0 if number < 2 else min(self.backoff_max_s, self.backoff_s * 2.0 ** min(number - 2, 1000))


def deadline(name: str, value: object) -> float | None:
    """Return a deadline in seconds, more than 0; `None` for no deadline.

    Raises:
        ValueError: no number, not positive, or not finite.
    """
    if value is None:
        return None
    number = seconds(name, value)
    if number == 0:
        raise ValueError(f"{name}={value!r} must be more than 0 seconds, or None for no deadline")
    return number


RESTARTS = Restarts()
"""The default limits."""


@dataclass(frozen=True)
class Survival:
    """Options for the survival of a fleet of workers.

    Attributes:
        restarts: limits of replacements.
        min_workers: the run ends if fewer workers live or are being replaced; `None` for all.
        fragment_timeout_s: deadline of a fragment, after which its worker counts as dead; `None` for no deadline.
        placement_timeout_s: seconds for the first workers to be ready, and for a replacement once it has been placed;
            `None` for no deadline.
        start_timeout_s: seconds for a worker to be ready once it has been placed; then `placement_timeout_s` is for the
            placement alone. `None`: `placement_timeout_s` is for both.
        waits_for_room: whether a replacement waits for a place without limit, with a log message per minute; else a
            replacement that is not placed after `placement_timeout_s` counts as a death.
        names: the user's names of the settings, if they differ.
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
            raise TypeError(f"restarts is of type {type(self.restarts).__name__}; it must be a swath.Restarts")
        if self.min_workers is not None:
            count("min_workers", self.min_workers)
        deadline("fragment_timeout_s", self.fragment_timeout_s)
        deadline("placement_timeout_s", self.placement_timeout_s)
        deadline("start_timeout_s", self.start_timeout_s)

    def describe(self, setting: str) -> str:
        """Return a deadline with the user's name, for messages: `name=value`."""
        value: float | None = getattr(self, setting)
        return f"{self.names.get(setting, setting)}={'None' if value is None else f'{value:g}'}"
