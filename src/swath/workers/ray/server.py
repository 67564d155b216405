"""How an actor answers: calls become methods of the object that it hosts, outcomes become replies."""

from __future__ import annotations

import pickle
from typing import TypeAlias

from swath.workers.hosting import Hosted
from swath.workers.message import Reply, begin_process, reply_to
from swath.workers.outcome import Outcome
from swath.workers.ray.messages import Large, Setup, Wire
from swath.workers.ray.values import Lent, packed, unpacked

Answer: TypeAlias = tuple[Reply | bytes, Wire]

_NO_BODY: Wire = b""


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
        lent: list[Lent] = []
        try:
            return _answer(self._hosted.answer(method, lambda: unpacked(wire, lent, own=True)))
        finally:
            for shared in lent:
                shared.release()

    def whole(self, method: str, wire: Wire) -> Reply | bytes:
        """Call a method of the object; the body of a parcel comes in the reply."""
        answer, body = self.answer(method, wire)
        if body is _NO_BODY:
            return answer
        reply: Reply = pickle.loads(answer) if isinstance(answer, bytes) else answer  # noqa: S301  made above
        return reply._replace(body=body)


def _answer(outcome: Outcome) -> Answer:
    reply, body = reply_to(outcome, packed), _NO_BODY
    if isinstance(reply.body, Large):
        reply, body = reply._replace(body=None), reply.body
    return reply if isinstance(reply.value, Large) else pickle.dumps(reply), body
