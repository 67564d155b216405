"""How a worker process answers: requests become calls of its object, outcomes become replies."""

from __future__ import annotations

import contextlib
import pickle
import socket
import sys
from functools import partial
from typing import Any

from swath.workers.hosting import Hosted
from swath.workers.message import begin_process, reply_to
from swath.workers.outcome import Outcome
from swath.workers.packing import pack, unpack
from swath.workers.process.memory import Block, of_driver, sent
from swath.workers.process.message import Answer, Inbox, Payload, Request, Setup, close_all, send


class WorkerServer:
    """Hosts a worker's object and answers requests.

    Args:
        sock: to the driver.
        setup: which worker it is.
    """

    def __init__(self, sock: socket.socket, setup: Setup) -> None:
        self._sock = sock
        self._setup = setup
        self._hosted = Hosted(setup.name)

    def run(self, before: Outcome) -> None:
        """Make the object, if what comes before it went well; then answer.

        Raises:
            EOFError: nobody asks any more.
        """
        begin_process(self._setup.threads)
        self._answer(0, self._hosted.build(before, partial(unpack, *self._setup.build)))
        inbox = Inbox(self._sock)
        while True:
            for message, fds in inbox.arrived():
                request: Request = pickle.loads(message)  # noqa: S301  our own driver wrote it
                of_driver.learn(request.news, fds)
                self._answer(request.serial, self._hosted.answer(request.method, partial(of_driver.own, request.args)))

    def _answer(self, serial: int, outcome: Outcome) -> None:
        blocks: list[Block] = []

        def carry(value: Any) -> Payload:
            payload, own = sent(pack(value), of_driver.pool)
            blocks.extend(own)
            return payload

        head, body = reply_to(outcome, carry)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # none, nobody reads it, it is closed
                stream.flush()
        news, fds = of_driver.news(blocks)
        try:
            with contextlib.suppress(BrokenPipeError):  # the driver is gone, or will kill us: the next request shows it
                send(self._sock, pickle.dumps(Answer(serial, head, body, news)), fds)
        finally:
            close_all(fds)
        of_driver.note_sent(news)
