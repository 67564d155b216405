"""What settings may be: checks `f(name, value)`, each giving the value as it is kept, or raising `ValueError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf, isnan
from numbers import Real
from typing import Any, TypeAlias, TypeVar

import numpy as np
from gymnasium import Space

from swath.errors import warn_of_no_effect
from swath.options import count, deadline

T = TypeVar("T")
Check: TypeAlias = Callable[[str, object], T]


def identity(value: Any) -> Any:
    """The value."""
    return value


def must_be(wanted: str, fits: Callable[[Any], bool], kept: Callable[[Any], T] = identity) -> Check[T]:
    """A check.

    Args:
        wanted: what a value must be, in words.
        fits: whether it is.
        kept: makes what is kept of it.
    """

    def check(name: str, value: object) -> T:
        if not fits(value):
            raise ValueError(f"{name}={value!r} is of type {type(value).__name__}; it must be {wanted}")
        return kept(value)

    return check


def whole(least: int = 0) -> Check[int]:
    """An integer of at least `least`."""
    return lambda name, value: count(name, value, least=least)


def is_number(value: Any) -> bool:
    """Whether it is a real number; True, False and NaN are none here."""
    return not isinstance(value, bool) and isinstance(value, Real) and not isnan(value)


def number(low: float = 0.0, high: float = inf) -> Check[float]:
    """A number from `low` to `high`, both included."""
    wanted = f"a number of at least {low:g}" if high == inf else f"a number from {low:g} to {high:g}"
    return must_be(wanted, lambda value: is_number(value) and low <= value <= high, float)


def due(name: str, value: object) -> float:
    """A deadline in seconds: more than 0, and finite."""
    result = deadline(name, value)
    if result is None:
        raise ValueError(f"{name}=None must be a number of seconds above 0: nothing waits for ever")
    return result


def optional(check: Check[T]) -> Check[T | None]:
    """None, or what `check` takes."""
    return lambda name, value: None if value is None else check(name, value)


def unless(fits: Callable[[Any], bool], check: Check[Any]) -> Check[Any]:
    """What fits is kept as it is; anything else is checked."""
    return lambda name, value: value if fits(value) else check(name, value)


def word(*words: str) -> Check[str]:
    """One of the words; an enum's member with such a value counts as the word."""
    wanted = repr(words[0]) if len(words) == 1 else f"one of {', '.join(map(repr, words))}"

    def plain(value: Any) -> Any:
        return getattr(value, "value", value)

    return must_be(wanted, lambda value: isinstance(plain(value), str) and plain(value) in words, plain)


def is_table(value: Any) -> bool:
    """Whether it is a dict by strings."""
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def table_of(check: Check[T]) -> Check[dict[str, T]]:
    """A dict whose values pass the check."""
    return lambda name, value: {key: check(f"{name}[{key!r}]", item) for key, item in table(name, value).items()}


def _is_schedule(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and all(map(is_number, pair)) for pair in value):
        return False
    return value[0][0] == 0 and all(earlier < later for (earlier, _), (later, _) in pairwise(value))


def _is_callbacks(value: Any) -> bool:
    return callable(value) or (isinstance(value, list | tuple) and all(map(callable, value)))


def says_who_learns(value: Any) -> bool:
    """Whether it says which policies learn; a string is no collection of ids here."""
    is_collection = isinstance(value, list | set | tuple | frozenset)
    return callable(value) or (is_collection and all(isinstance(each, str) for each in value))


flag = must_be("True or False", lambda value: isinstance(value, bool | np.bool_), bool)
positive = must_be("a number above 0", lambda value: is_number(value) and value > 0, float)
table: Check[dict[str, Any]] = must_be("a dict whose keys are strings", is_table, dict)
space: Check[Space[Any]] = must_be("a gymnasium Space", lambda value: isinstance(value, Space))
function: Check[Callable[..., Any]] = must_be("callable", callable)
env: Check[Any] = must_be(
    "an id, a name from register_env, a class, or a callable that makes the env",
    lambda value: isinstance(value, str) or callable(value),
)
callbacks = must_be(
    "a class derived from DefaultCallbacks, a function with keywords, or a list of such",
    _is_callbacks,
    lambda value: value if callable(value) else list(value),
)
schedule = must_be(
    "a list of [step, value] with growing steps, the first of them 0",
    _is_schedule,
    lambda value: [[float(step), float(then)] for step, then in value],
)
LEARNERS = "a list, set or tuple of policy ids, or f(policy_id, batch=None) -> bool"
learners: Check[Any] = must_be(LEARNERS, says_who_learns)
id_: Check[str] = must_be("a string that is not empty", lambda value: isinstance(value, str) and bool(value))

_WIDTHS: Check[Any] = must_be(
    "a list of layer widths", lambda value: isinstance(value, Sequence) and not isinstance(value, str)
)


def _activation(name: str, value: object) -> str:
    """The name of an activation; "swish" is "silu", and None is "linear"."""
    same = "linear" if value is None else "silu" if value == "swish" else value
    return word("tanh", "relu", "silu", "elu", "linear")(name, same)


_MODEL: dict[str, tuple[Any, Check[Any]]] = {
    "fcnet_hiddens": ([256, 256], lambda name, value: [whole(1)(name, width) for width in _WIDTHS(name, value)]),
    "fcnet_activation": ("tanh", _activation),
    "vf_share_layers": (False, flag),
    "free_log_std": (False, flag),
    "max_seq_len": (20, whole(1)),
    "custom_model": (None, optional(function)),
    "custom_model_config": ({}, table),
}
"""Default and check by key."""

MODEL_DEFAULTS: dict[str, Any] = {key: default for key, (default, _) in _MODEL.items()}
"""The setting `model` of a new config."""

_MEMORY = ("use_lstm", "use_attention")


def model(name: str, value: object) -> dict[str, Any]:
    """The model's settings, complete; keys that nothing here reads are kept for a model of the user's.

    Raises:
        ValueError: a key that is refused, or a value out of range.
    """
    given = table(name, value)
    for key in _MEMORY:
        if given.get(key):
            raise ValueError(
                f"{name}[{key!r}]={given[key]!r} is not served: write make_model of a TorchPolicy whose network takes "
                "(obs, state, seq_lens), or give custom_model"
            )
    for key in sorted(given.keys() - _MODEL.keys() - set(_MEMORY)):
        warn_of_no_effect(f"model[{key!r}]", "the default network does not have it; only a custom_model would read it")
    own = {key: check(f"{name}[{key!r}]", given.get(key, default)) for key, (default, check) in _MODEL.items()}
    return {**given, **own}
