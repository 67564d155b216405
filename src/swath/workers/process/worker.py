"""How a worker process answers: requests become calls of its object, outcomes become replies."""

from __future__ import annotations

import mmap
import pickle
import socket
from functools import partial
from typing import Any, TypeAlias

from swath.owner import Owner
from swath.workers.hosting import Hosted
from swath.workers.outcome import Outcome
from swath.workers.packing import pack, reply_to, unpack
from swath.workers.process.memory import Arena, Lease, Payload, Window, of_driver
from swath.workers.tickets import Name

LONGEST = 1 << 16
"""Bytes of a message, at most: what is larger is in an arena."""

Call: TypeAlias = tuple[int, str, Payload, list[int]]
"""Its number, a method, the arguments, and blocks of the worker that are not needed any more."""

Answer: TypeAlias = tuple[int, Payload, Payload | None]
"""The number of the request, and two parts, see `reply_to`."""


class WorkerServer:
    """Hosts a worker's object and answers requests.

    Args:
        sock: to the driver; a message is one packet.
        arenas: the files that the driver and this worker write.
        name: which life of which worker.
    """

    def __init__(self, sock: socket.socket, arenas: tuple[int, int], name: Name) -> None:
        of_driver[:] = [Window(arenas[0], mmap.ACCESS_READ)]
        self._sock = sock
        self._arena = Arena(arenas[1])
        self._lent: dict[int, Lease] = {}
        self._hosted, self._owner = Hosted(name), Owner()

    def run(self, number: int, before: Outcome, build: tuple[bytes, list[bytearray]]) -> None:
        """Make the object, if what comes before it went well; then answer until nobody asks any more.

        Raises:
            ConnectionError: the driver is gone.

        Args:
            number: of the request to build it.
            before: what became of what comes before.
            build: how to make it.
        """
        self._answer(number, self._hosted.build(before, partial(unpack, *build)))
        while message := self._sock.recv(LONGEST):
            call: Call = pickle.loads(message)  # noqa: S301  our own driver wrote it
            number, method, args, returned = call
            for start in returned:
                self._lent.pop(start, None)
            self._answer(number, self._hosted.answer(method, partial(of_driver[0].own, args)))

    def _answer(self, number: int, outcome: Outcome) -> None:
        """Send an answer; a fork of this process, which code of the user has let come so far, ends in its place."""
        if not self._owner.is_here:
            raise SystemExit

        def carry(value: Any) -> Payload:
            payload, lease = self._arena.sent(pack(value))
            if lease is not None:
                self._lent[payload.start] = lease
            return payload

        head, body = reply_to(outcome, carry)
        answer: Answer = (number, head, body)
        self._sock.send(pickle.dumps(answer))
