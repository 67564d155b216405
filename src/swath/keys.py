"""Names of batch entries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Key: TypeAlias = str | tuple[str, ...]

OBSERVATION = "observation"
ACTION = "action"
ACTION_MASK = "action_mask"
LOG_PROB = "action_log_prob"
SAMPLE_LOG_PROB = "sample_log_prob"  # in batches of rollout workers, for TorchRL's older losses
STATE_VALUE = "state_value"
ADVANTAGE = "advantage"
VALUE_TARGET = "value_target"
REWARD = "reward"
DONE = "done"
TERMINATED = "terminated"
TRUNCATED = "truncated"
NEXT = "next"
STEP_COUNT = "step_count"
IS_INIT = "is_init"
TIME = "time"

COLLECTOR = "collector"
TRAJ_IDS = ("collector", "traj_ids")
VERSION = ("collector", "policy_version")
MASK = ("collector", "mask")
MISSING = ("next", "final_observation_missing")
TRACKED_VERSION = "policy_version"

FLAGS = (DONE, TERMINATED, TRUNCATED)
"""End flags of an episode."""

RESERVED = frozenset({ACTION, REWARD, DONE, TERMINATED, TRUNCATED, NEXT, STEP_COUNT, IS_INIT, COLLECTOR, MISSING[1]})
"""Root names that an env's observations may not take."""


def as_tuple(key: Key) -> tuple[str, ...]:
    """Return the key as a tuple: `("a",)` for `"a"`."""
    return (key,) if isinstance(key, str) else tuple(key)


def as_key(path: tuple[str, ...]) -> Key:
    """Return the shortest key for a path: `"a"` for `("a",)`."""
    return path[0] if len(path) == 1 else path


def keys_of(name: str, value: Any) -> list[Key]:
    """Return a key, or the keys in a list, in their shortest form.

    Args:
        name: of the user's argument, for messages.
        value: of the argument.

    Raises:
        TypeError: a value that is no key.
        ValueError: an empty list.
    """
    keys = list(value) if isinstance(value, list) else [value]
    if not keys:
        raise ValueError(f"{name}=[] reads nothing; give at least one key, e.g. ('next', 'reward')")
    for key in keys:
        parts = key if isinstance(key, tuple) else (key,)
        if not parts or not all(isinstance(part, str) for part in parts):
            raise TypeError(f"{name} has {key!r}; a key is a string or a tuple of strings, e.g. ('next', 'reward')")
    return [as_key(as_tuple(key)) for key in keys]


def nest_entries(items: Iterable[tuple[Key, Any]]) -> dict[str, Any]:
    """Return nested dicts with these entries: `("a", "b")` is the entry `"b"` of the dict at `"a"`."""
    root: dict[str, Any] = {}
    for key, value in items:
        *parents, name = as_tuple(key)
        target = root
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = value
    return root


def under_next(key: Key) -> tuple[str, ...]:
    """Return the key of an entry in the next step: `("next", "a")` for `"a"`."""
    return (NEXT, *as_tuple(key))


def order_entries(td: Any, order: Iterable[Key]) -> Any:
    """Return a TensorDict with these entries first, in this order; the entries are not copied."""
    paths = [*map(as_tuple, td.keys(include_nested=True))]
    groups = {path[:depth] for path in paths for depth in range(1, len(path))}
    return td.select(*order, *(path for path in paths if path not in groups), strict=False)


def is_private(key: Key) -> bool:
    """Tell whether any level of the key begins with an underscore, so that the entry is not delivered."""
    return any(part.startswith("_") for part in as_tuple(key))


def drop_private(td: Any) -> None:
    """Delete the entries of a TensorDict that are not delivered."""
    for key in [key for key in td.keys(include_nested=True) if is_private(key)]:
        if key in td.keys(include_nested=True):
            del td[key]
