"""Settings that this class cannot follow, or that do nothing here: never ignored in silence."""

from __future__ import annotations

from dataclasses import dataclass

from swath.errors import warn_of_no_effect

BACKENDS = ("direct", "thread", "process", "ray")


@dataclass(frozen=True)
class Unserved:
    """Arguments of other collectors and of the peer, which `Collector` takes at their defaults only."""

    backend: str | None
    num_collectors: int | None
    sync: bool | None
    return_same_td: bool
    reset_when_done: bool
    use_buffers: bool | None
    extend_buffer: bool


def require_served(asked: Unserved) -> None:
    """Raise for what cannot be done, warn of what does nothing.

    Raises:
        TypeError: `num_collectors` is no int.
        ValueError: a value that this class cannot follow; the message says why.
    """
    _require_direct(asked)
    if asked.return_same_td:
        raise ValueError("return_same_td=True: every batch owns its memory here; leave it out")
    if not asked.reset_when_done:
        raise ValueError("reset_when_done=False: an env that is done always begins another episode; leave it out")
    if asked.use_buffers is not None:
        warn_of_no_effect("use_buffers", "buffers are always used", stacklevel=3)
    if not asked.extend_buffer:
        warn_of_no_effect("extend_buffer", "a replay buffer is always extended", stacklevel=3)


def _require_direct(asked: Unserved) -> None:
    if asked.backend is not None and asked.backend not in BACKENDS:
        raise ValueError(f"backend={asked.backend!r} is unknown; backends are {', '.join(BACKENDS)}")
    if asked.backend not in (None, "direct"):
        raise ValueError(f"backend={asked.backend!r}: this version collects in this process only; use 'direct'")
    number = asked.num_collectors
    if number is not None:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"num_collectors is a {type(number).__name__}; it must be a positive integer")
        if number < 1:
            raise ValueError(f"num_collectors={number} must be a positive integer")
        if number > 1:
            raise ValueError(f"num_collectors={number}: backend 'direct' takes at most one collector")
    if asked.sync is not None:
        raise ValueError(f"sync={asked.sync!r}: backend 'direct' has one worker and takes no sync; leave it out")
