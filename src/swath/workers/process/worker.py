"""How a worker process answers: requests become calls of its object, outcomes become replies."""

from __future__ import annotations

import contextlib
import pickle
import socket
import sys
from functools import partial
from typing import Any

from swath.workers.hosting import Hosted
from swath.workers.message import reply_to
from swath.workers.outcome import Outcome
from swath.workers.packing import pack, unpack
from swath.workers.process.memory import Lease, of_driver, sent
from swath.workers.process.message import Answer, Inbox, Payload, Request, close_all, send
from swath.workers.tickets import Name


class WorkerServer:
    """Hosts a worker's object and answers requests.

    Args:
        sock: to the driver.
        name: which life of which worker.
    """

    def __init__(self, sock: socket.socket, name: Name) -> None:
        self._sock = sock
        self._hosted = Hosted(name)

    def run(self, before: Outcome, build: tuple[bytes, list[bytearray]]) -> None:
        """Make the object, if what comes before it went well; then answer.

        Raises:
            EOFError: nobody asks any more.
        """
        self._answer(0, self._hosted.build(before, partial(unpack, *build)))
        inbox = Inbox(self._sock)
        while True:
            for message, fds in inbox.arrived():
                request: Request = pickle.loads(message)  # noqa: S301  our own driver wrote it
                serial, method, args, news = request
                of_driver.learn(news, fds)
                self._answer(serial, self._hosted.answer(method, partial(of_driver.own, args)))

    def _answer(self, serial: int, outcome: Outcome) -> None:
        leases: list[Lease] = []

        def carry(value: Any) -> Payload:
            payload, own = sent(pack(value), of_driver.pool)
            leases.extend(own)
            return payload

        head, body = reply_to(outcome, carry)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # none, nobody reads it, it is closed
                stream.flush()
        news, fds = of_driver.news(leases)
        answer: Answer = (serial, head, body, news)
        try:
            with contextlib.suppress(BrokenPipeError):  # the driver is gone, or will kill us: the next request shows it
                send(self._sock, pickle.dumps(answer), fds)
        finally:
            close_all(fds)
        of_driver.note_sent(news)
        of_driver.lent.update((lease.block.id, lease) for lease in leases)
