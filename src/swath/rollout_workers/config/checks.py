"""What settings may be: makers of checks, each `f(name, value)` giving the value as it is kept, or a `ValueError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf
from numbers import Real
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
from gymnasium import Space

from swath.options import count, deadline, seconds

T = TypeVar("T")
Check: TypeAlias = Callable[[str, object], T]
Schedule: TypeAlias = list[list[float]]


def refuse(name: str, value: object, wanted: str) -> NoReturn:
    """Raise the `ValueError` that every check raises."""
    raise ValueError(f"{name}={value!r} is of type {type(value).__name__}; it must be {wanted}")


def flag(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        refuse(name, value, "True or False")
    return bool(value)


def whole(least: int = 0) -> Check[int]:
    """An integer of at least `least`."""
    return lambda name, value: count(name, value, least=least)


def number(low: float = 0.0, high: float = inf) -> Check[float]:
    """A number from `low` to `high`, both included."""
    wanted = f"a number of at least {low:g}" if high == inf else f"a number from {low:g} to {high:g}"

    def check(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
            refuse(name, value, wanted)
        return float(value)

    return check


def positive(name: str, value: object) -> float:
    """A number above 0."""
    result = number()(name, value)
    if result == 0:
        raise ValueError(f"{name}={value!r} must be more than 0")
    return result


def due(name: str, value: object) -> float:
    """A deadline in seconds: more than 0, and finite."""
    result = deadline(name, value)
    if result is None:
        raise ValueError(f"{name}=None must be a number of seconds above 0: nothing waits for ever")
    return result


def optional(check: Check[T]) -> Check[T | None]:
    """None, or what `check` takes."""
    return lambda name, value: None if value is None else check(name, value)


def word(*words: str) -> Check[str]:
    """One of the words; an enum's member with such a value counts as the word."""
    wanted = repr(words[0]) if len(words) == 1 else f"one of {', '.join(map(repr, words))}"

    def check(name: str, value: object) -> str:
        spoken = getattr(value, "value", value)
        if not isinstance(spoken, str) or spoken not in words:
            raise ValueError(f"{name}={value!r} must be {wanted}")
        return spoken

    return check


def table(name: str, value: object) -> dict[str, Any]:
    """A dict of names; kept as a copy."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        refuse(name, value, "a dict whose keys are strings")
    return dict(value)


def amounts(name: str, value: object) -> dict[str, float]:
    """A dict of names and numbers of at least 0."""
    return {key: number()(f"{name}[{key!r}]", amount) for key, amount in table(name, value).items()}


def space(name: str, value: object) -> Space[Any]:
    """A gymnasium space."""
    if not isinstance(value, Space):
        refuse(name, value, "a gymnasium Space or None")
    return value


def function(name: str, value: object) -> Callable[..., Any]:
    """Something to call."""
    if not callable(value):
        refuse(name, value, "callable")
    return value


def schedule(name: str, value: object) -> Schedule:
    """`[[step, value], …]` with steps that grow, from 0 on."""
    wanted = "a list of [step, value] with growing steps, the first of them 0"
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        refuse(name, value, wanted)
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
        refuse(name, value, wanted)
    pairs = [[number()(name, step), number(-inf)(name, then)] for step, then in value]
    steps = [step for step, _ in pairs]
    if steps[0] != 0 or any(later <= earlier for earlier, later in pairwise(steps)):
        refuse(name, value, wanted)
    return pairs


wait = seconds
"""A time to wait, 0 or more."""
