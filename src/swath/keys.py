"""Names of batch entries: the one place where they are spelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Key: TypeAlias = str | tuple[str, ...]

OBSERVATION = "observation"
ACTION = "action"
ACTION_MASK = "action_mask"
LOG_PROB = "action_log_prob"
SAMPLE_LOG_PROB = "sample_log_prob"  # the same of what rollout workers sampled, as TorchRL's older losses read it
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
TRACKED_VERSION = "policy_version"

FLAGS = (DONE, TERMINATED, TRUNCATED)
"""Whether an episode is over, and how it ended."""

RESERVED = frozenset({ACTION, REWARD, DONE, TERMINATED, TRUNCATED, NEXT, STEP_COUNT, IS_INIT, COLLECTOR})
"""Root names that an env's observations may not take."""


def as_tuple(key: Key) -> tuple[str, ...]:
    """The key as a tuple: `"a"` gives `("a",)`."""
    return (key,) if isinstance(key, str) else tuple(key)


def as_key(path: tuple[str, ...]) -> Key:
    """The shortest spelling of a path: `("a",)` gives `"a"`."""
    return path[0] if len(path) == 1 else path


def keys_of(name: str, given: Any) -> list[Key]:
    """A nested key of the user's, or a list of them.

    Args:
        name: of the argument, for messages.
        given: as it was given.

    Raises:
        TypeError: something else.
        ValueError: an empty list.
    """
    keys = list(given) if isinstance(given, list) else [given]
    if not keys:
        raise ValueError(f"{name}=[] reads nothing; give at least one key, e.g. ('next', 'reward')")
    for key in keys:
        parts = key if isinstance(key, tuple) else (key,)
        if not parts or not all(isinstance(part, str) for part in parts):
            raise TypeError(f"{name} has {key!r}; a key is a string or a tuple of strings, e.g. ('next', 'reward')")
    return [as_key(as_tuple(key)) for key in keys]


def nested(items: Iterable[tuple[Key, Any]]) -> dict[str, Any]:
    """Entries as dicts in dicts: `("a", "b")` is the entry `"b"` of the dict at `"a"`."""
    root: dict[str, Any] = {}
    for key, value in items:
        *parents, name = as_tuple(key)
        target = root
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = value
    return root


def under_next(key: Key) -> tuple[str, ...]:
    """The same entry one step later: `"a"` gives `("next", "a")`."""
    return (NEXT, *as_tuple(key))


def is_private(key: Key) -> bool:
    """Whether any level of the key begins with an underscore; such entries are not delivered."""
    return any(part.startswith("_") for part in as_tuple(key))


def drop_private(td: Any) -> None:
    """Delete the entries of a TensorDict that are not delivered."""
    for key in [key for key in td.keys(include_nested=True) if is_private(key)]:
        if key in td.keys(include_nested=True):
            del td[key]
