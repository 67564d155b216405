"""How an actor answers: calls become methods of the object that it hosts, outcomes become replies."""

from __future__ import annotations

import pickle
from typing import Any, TypeAlias

from swath.workers.hosting import Hosted
from swath.workers.message import begin_process, reply_to
from swath.workers.outcome import Outcome
from swath.workers.ray.values import ELSEWHERE, Shared, packed, unpacked
from swath.workers.ray.worker import Large, Setup, Wire

Answer: TypeAlias = tuple[Any, Large | bytes]
"""A reply, and the body of a parcel if it is large, which stays in Ray's store; else nothing."""


class WorkerServer:
    """Hosts a worker's object in a process that is there for nothing else.

    Args:
        setup: which worker it is.
        before: what became of what runs first; if that went well, the object is made.

    Attributes:
        built: what became of making the object.
        method: gives a method of the object, for others than our driver.
    """

    def __init__(self, setup: Setup, before: Outcome) -> None:
        begin_process(setup.threads)
        self._hosted = Hosted(setup.name)
        self.method = self._hosted.method
        self.built = _answer(self._hosted.build(before, lambda: unpacked(setup.build, own=True)))

    def answer(self, method: str, wire: Wire) -> Answer:
        """Call a method of the object."""
        lent: list[Shared] = []
        try:
            return _answer(self._hosted.answer(method, lambda: unpacked(wire, lent, own=True)))
        finally:
            for shared in lent:
                shared.release()


def _answer(outcome: Outcome) -> Answer:
    head, body = reply_to(outcome, packed)
    body, large = (ELSEWHERE, body) if isinstance(body, Large) else (body, b"")
    return (head, body) if isinstance(head, Large) else pickle.dumps((head, body)), large  # bytes pass as they are
