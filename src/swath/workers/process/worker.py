"""How a worker process answers: requests become calls of its object, outcomes become replies."""

from __future__ import annotations

import contextlib
import pickle
import random
import socket
import sys

import numpy as np
import torch

from swath.workers.hosting import Hosted, attempted
from swath.workers.outcome import Error, Outcome, Value, frozen
from swath.workers.packing import Parcel, pack, unpack
from swath.workers.process.memory import Block, of_driver, sent
from swath.workers.process.message import Payload, Reply, Request, Setup, close_all, receive, send


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
        if not isinstance(before, Error):
            torch.set_num_threads(self._setup.threads)
            random.seed()  # no other worker has the same random states
            np.random.seed()  # noqa: NPY002  users draw from it
            torch.seed()
            before = self._hosted.build(None, lambda: unpack(*self._setup.build))
        self._reply(0, before)
        while True:
            message, fds = receive(self._sock)
            request: Request = pickle.loads(message)  # noqa: S301  our own driver wrote it
            of_driver.learn(request.news, fds)
            args = attempted(of_driver.own, request.args)
            outcome = args if isinstance(args, Error) else self._hosted.answer(request.method, args.value)
            self._reply(request.serial, outcome)

    def _reply(self, serial: int, outcome: Outcome) -> None:
        encoded = outcome if isinstance(outcome, Error) else attempted(_encoded, outcome.value)
        raised = isinstance(encoded, Error)
        if isinstance(encoded, Error):
            encoded = Value(_encoded(frozen(encoded.exception)))
        value, body, blocks = encoded.value
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # none, nobody reads it, it is closed
                stream.flush()
        news, fds = of_driver.news(blocks)
        try:
            with contextlib.suppress(BrokenPipeError):  # the driver is gone, or will kill us: the next request shows it
                send(self._sock, pickle.dumps(Reply(serial, raised, value, body, news)), fds)
        finally:
            close_all(fds)
        of_driver.said(news)


def _encoded(value: object) -> tuple[Payload, Payload | None, list[Block]]:
    """What a call returned, the body if that is a parcel, and the blocks that they lie in."""
    if not isinstance(value, Parcel):
        payload, blocks = sent(pack(value), of_driver.pool)
        return payload, None, blocks
    head, body = pack(value.head), pack(value.body)
    (small, blocks), (large, more) = sent(head, of_driver.pool), sent(body, of_driver.pool)
    return small, large, blocks + more
