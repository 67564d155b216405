"""What has happened to the workers of a set, kept until it is asked for."""

from __future__ import annotations

import time
from collections import deque
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["died", "hung", "replaced", "given up", "late", "discarded"]

MOST = 10_000


class Event(NamedTuple):
    """Something that has happened.

    Attributes:
        time: when, in seconds of `time.time`.
        worker: to whom, by id.
        life: in which of its lives.
        kind: what.
        text: in words.
    """

    time: float
    worker: int
    life: int
    kind: Kind
    text: str


class Events:
    """The last of them, oldest first."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MOST)

    def note(self, name: tuple[int, int], kind: Kind, text: str) -> None:
        """It happened just now to this life of a worker."""
        self._events.append(Event(time.time(), *name, kind, text))

    def drain(self) -> list[Event]:
        """All since the last call."""
        drained = []
        while self._events:
            drained.append(self._events.popleft())
        return drained
