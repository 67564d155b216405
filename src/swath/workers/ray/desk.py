"""How an actor answers: calls become methods of the object it hosts, outcomes become replies."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from swath.workers.hosting import Hosted, attempted
from swath.workers.outcome import Error, Outcome, Value, frozen
from swath.workers.packing import Parcel
from swath.workers.ray.freight import Lent, packed, unpacked
from swath.workers.ray.messages import Freight, Reply, Wire
from swath.workers.tickets import Name

Answer: TypeAlias = tuple[Reply | bytes, Wire]

_NO_BODY = b""


class Desk:
    """Hosts a worker's object.

    Args:
        name: which life of which worker.
    """

    def __init__(self, name: Name) -> None:
        self._hosted = Hosted(name)

    def build(self, before: Outcome, load: Callable[[], Callable[[], Any]]) -> Answer:
        """Make the object with what `load` gives, if what comes before it went well."""
        return _answer(before if isinstance(before, Error) else self._hosted.build(None, load))

    def answer(self, method: str, wire: Wire) -> Answer:
        """Call a method of the object."""
        lent: list[Lent] = []
        args = attempted(lambda: unpacked(wire, lent, own=True))
        try:
            return _answer(args if isinstance(args, Error) else self._hosted.answer(method, args.value))
        finally:
            for shared in lent:
                shared.expire()

    def whole(self, method: str, wire: Wire) -> Reply | bytes:
        """Call a method of the object; the body of a parcel comes in the reply."""
        answer, body = self.answer(method, wire)
        if body is _NO_BODY:
            return answer
        reply: Reply = pickle.loads(answer) if isinstance(answer, bytes) else answer  # noqa: S301  made above
        return reply._replace(body=body)

    def method(self, name: str) -> Callable[..., Any]:
        """A method of the object, for others than our driver."""
        return self._hosted.method(name)


class RayDesk(Desk):
    """Hosts it in a process that is there for nothing else.

    Args:
        name: which life of which worker.
        threads: torch's.
    """

    def __init__(self, name: Name, threads: int) -> None:
        super().__init__(name)
        torch.set_num_threads(threads)
        torch.seed()  # a new process begins with the same random state as any other
        random.seed()
        np.random.seed()  # noqa: NPY002  users draw from it

    def built(self, before: Outcome, build: Wire) -> Answer:
        """Make the object that has travelled here, if what comes before it went well."""
        return self.build(before, lambda: unpacked(build, own=True))


def _answer(outcome: Outcome) -> Answer:
    encoded = outcome if isinstance(outcome, Error) else attempted(_encoded, outcome.value)
    if isinstance(encoded, Error):
        encoded = Value((Reply(None, frozen(encoded.exception)), _NO_BODY))
    reply, body = encoded.value
    return reply if isinstance(reply.value, Freight) else pickle.dumps(reply), body


def _encoded(value: Any) -> tuple[Reply, Wire]:
    if not isinstance(value, Parcel):
        return Reply(packed(value)), _NO_BODY
    head, body = packed(value.head), packed(value.body)
    if isinstance(body, bytes):
        return Reply(head, parcel=True, body=body), _NO_BODY
    return Reply(head, parcel=True), body
