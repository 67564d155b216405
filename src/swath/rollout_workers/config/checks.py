"""Checks of settings: each is `f(name, value)`, which returns the value to keep, or raises `ValueError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import inf, isnan
from numbers import Real
from typing import Any, TypeAlias, TypeVar

import numpy as np
from gymnasium import Space

from swath.errors import warn_of_no_effect
from swath.options import count

T = TypeVar("T")
Check: TypeAlias = Callable[[str, object], T]


def must_be(needed: str, fits: Callable[[Any], bool], keep: Callable[[Any], T] = lambda value: value) -> Check[T]:
    """Build a check.

    Args:
        needed: the condition for a value, in words.
        fits: returns whether a value meets the condition.
        keep: returns the value to keep.
    """

    def check(name: str, value: object) -> T:
        if not fits(value):
            raise ValueError(f"{name}={value!r} is of type {type(value).__name__}; it must be {needed}")
        return keep(value)

    return check


def integer(minimum: int = 0) -> Check[int]:
    """Check for an integer of at least `minimum`."""
    return lambda name, value: count(name, value, minimum=minimum)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number; True, False and NaN are none here."""
    return not isinstance(value, bool) and isinstance(value, Real) and not isnan(value)


def number(low: float = 0.0, high: float = inf) -> Check[float]:
    """Check for a number from `low` to `high`, both included."""
    return must_be(f"a number from {low:g} to {high:g}", lambda value: is_number(value) and low <= value <= high, float)


def optional(check: Check[T], is_exempt: Callable[[Any], bool] = lambda value: value is None) -> Check[Any]:
    """Accept None, or another value that `fits`, unchanged; check anything else."""
    return lambda name, value: value if is_exempt(value) else check(name, value)


def choice(*words: str) -> Check[str]:
    """Check for one of the words."""
    return must_be(f"one of {', '.join(map(repr, words))}", lambda value: isinstance(value, str) and value in words)


def dict_of(check: Check[T]) -> Check[dict[str, T]]:
    """Check for a dict whose values pass the check."""
    return lambda name, value: {key: check(f"{name}[{key!r}]", item) for key, item in string_dict(name, value).items()}


def is_list(value: Any, is_valid: Callable[[Any], bool], kinds: Any = (list, tuple)) -> bool:
    """Return whether a value is of one of the kinds and all its items fit."""
    return isinstance(value, kinds) and all(map(is_valid, value))


def _is_schedule(value: Any) -> bool:
    if not value or not is_list(value, lambda pair: is_list(pair, is_number) and len(pair) == 2):
        return False
    return value[0][0] == 0 and all(earlier < later for (earlier, _), (later, _) in pairwise(value))


def is_learner_choice(value: Any) -> bool:
    """Return whether a value says which policies learn; a string is no collection of ids here."""
    return callable(value) or is_list(value, lambda item: isinstance(item, str), (list, set, tuple, frozenset))


flag = must_be("True or False", lambda value: isinstance(value, bool | np.bool_), bool)
positive_seconds = must_be(
    "a number of seconds above 0: nothing waits for ever", lambda value: is_number(value) and 0 < value < inf, float
)
positive = must_be("a number above 0", lambda value: is_number(value) and value > 0, float)
string_dict: Check[dict[str, Any]] = must_be(
    "a dict whose keys are strings",
    lambda value: isinstance(value, Mapping) and is_list([*value], lambda key: isinstance(key, str)),
    dict,
)
space: Check[Space[Any]] = must_be("a gymnasium Space", lambda value: isinstance(value, Space))
function: Check[Callable[..., Any]] = must_be("callable", callable)
env: Check[Any] = must_be(
    "an env's id, or a callable that makes one", lambda value: isinstance(value, str) or callable(value)
)
callbacks = must_be(
    "a class derived from DefaultCallbacks, a function with keywords, or a list of them",
    lambda value: callable(value) or is_list(value, callable),
    lambda value: value if callable(value) else list(value),
)
schedule = must_be(
    "a list of [step, value] with growing steps, the first of them 0",
    _is_schedule,
    lambda value: [[float(step), float(then)] for step, then in value],
)
LEARNERS = "a list, set or tuple of policy ids, or f(policy_id, batch=None) -> bool"
learners: Check[Any] = must_be(LEARNERS, is_learner_choice)
id_: Check[str] = must_be("a string that is not empty", lambda value: isinstance(value, str) and bool(value))
clip: Check[Any] = optional(positive, lambda value: value is None or isinstance(value, bool))
widths: Check[list[int]] = must_be(
    "a list of widths of layers", lambda value: is_list(value, lambda width: isinstance(width, int) and width > 0), list
)


def _activation(name: str, value: object) -> str:
    """Check the name of an activation; "swish" is "silu", and None is "linear"."""
    same = "linear" if value is None else "silu" if value == "swish" else value
    return choice("tanh", "relu", "silu", "elu", "linear")(name, same)


_MODEL: dict[str, tuple[Any, Check[Any]]] = {
    "fcnet_hiddens": ([256, 256], widths),
    "fcnet_activation": ("tanh", _activation),
    "vf_share_layers": (False, flag),
    "free_log_std": (False, flag),
    "max_seq_len": (20, integer(1)),
    "custom_model": (None, optional(function)),
    "custom_model_config": ({}, string_dict),
}
"""Default and check by key."""

MODEL_DEFAULTS: dict[str, Any] = {key: default for key, (default, _) in _MODEL.items()}
"""The setting `model` of a new config."""


def model(name: str, value: object) -> dict[str, Any]:
    """Check and complete the model's settings; unknown keys are kept for a model of the user's.

    Raises:
        ValueError: a key that is refused, or a value out of range.
    """
    settings = string_dict(name, value)
    for key in ("use_lstm", "use_attention"):
        if settings.get(key):
            advice = "write make_model of a TorchPolicy with a network of (obs, state, seq_lens), or give custom_model"
            raise ValueError(f"{name}[{key!r}]={settings[key]!r} is not served: {advice}")
        settings.pop(key, None)
    for key in sorted(settings.keys() - _MODEL.keys()):
        warn_of_no_effect(f"model[{key!r}]", "the default network does not have it; only a custom_model would read it")
    checked = {key: check(f"{name}[{key!r}]", settings.get(key, default)) for key, (default, check) in _MODEL.items()}
    return {**settings, **checked}
