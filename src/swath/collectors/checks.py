"""Settings that this class cannot follow, or that do nothing here: never ignored in silence."""

from __future__ import annotations

from typing import Any

from swath.errors import warn_of_no_effect
from swath.options import count
from swath.rollout.episodes.ids import MOST_WORKERS


def check_peers_knobs(
    return_same_td: bool, reset_when_done: bool, use_buffers: bool | None, extend_buffer: bool
) -> None:
    """Raise for settings of TorchRL's that cannot be followed, warn of those that do nothing.

    Raises:
        ValueError: a value that cannot be followed; the message says why.
    """
    if return_same_td:
        raise ValueError("return_same_td=True: every batch owns its memory here; leave it out")
    if not reset_when_done:
        raise ValueError("reset_when_done=False: an env that is done always begins another episode; leave it out")
    if use_buffers is not None:
        warn_of_no_effect("use_buffers", "buffers are always used")
    if not extend_buffer:
        warn_of_no_effect("extend_buffer", "a replay buffer is always extended")


def whole_number(name: str, value: Any) -> int:
    """The value as an int.

    Raises:
        TypeError: it is none; a bool is none either.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__}; it must be an int")
    return int(value.__index__())


def worker_index(value: Any) -> int:
    """A 0-based index of a worker.

    Raises:
        ValueError: it is none.
    """
    index = count("worker_idx", value, least=0)
    if index >= MOST_WORKERS:
        raise ValueError(f"worker_idx={index} must be below {MOST_WORKERS}; trajectory ids would stop being unique")
    return index


def with_method(name: str, value: Any, method: str) -> Any:
    """The value itself, if it is `None` or has this method.

    Raises:
        TypeError: it lacks one.
    """
    if value is not None and not callable(getattr(value, method, None)):
        raise TypeError(f"{name} is of type {type(value).__name__} without {method}(); give it that method")
    return value


def optional_count(name: str, value: object) -> int | None:
    """`None`, 0 and negative numbers mean no limit.

    Raises:
        ValueError: it is not an integer.
    """
    if value is None:
        return None
    number = count(name, value, least=None)
    return number if number > 0 else None
