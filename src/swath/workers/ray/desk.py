"""How an actor answers: calls become methods of the object it hosts, outcomes become replies."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

from swath.workers.hosting import Hosted, attempted
from swath.workers.message import Reply, begin_process, reply_to
from swath.workers.outcome import Error, Outcome
from swath.workers.ray.freight import Lent, packed, unpacked
from swath.workers.ray.messages import Freight, Wire
from swath.workers.tickets import Name

Answer: TypeAlias = tuple[Reply | bytes, Wire]

_NO_BODY: Wire = b""


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
        begin_process(threads)

    def built(self, before: Outcome, build: Wire) -> Answer:
        """Make the object that has travelled here, if what comes before it went well."""
        return self.build(before, lambda: unpacked(build, own=True))


def _answer(outcome: Outcome) -> Answer:
    reply, body = reply_to(outcome, packed), _NO_BODY
    if isinstance(reply.body, Freight):
        reply, body = reply._replace(body=None), reply.body
    return reply if isinstance(reply.value, Freight) else pickle.dumps(reply), body
