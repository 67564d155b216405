"""How a worker process answers: requests become calls of its object, outcomes become replies."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator

import numpy as np
import torch

from swath.workers.hosting import Hosted, attempted
from swath.workers.outcome import Error, Outcome, Value, frozen
from swath.workers.packing import Parcel, pack
from swath.workers.process import sharing
from swath.workers.process.blocks import Lender
from swath.workers.process.cargo import given, introduced, lent, taken
from swath.workers.process.messages import Reply, Request, Setup
from swath.workers.process.wire import Wire, close_all, flush


class Desk:
    """Hosts a worker's object and answers requests.

    Args:
        wire: to the driver.
        setup: which worker it is.
    """

    def __init__(self, wire: Wire, setup: Setup) -> None:
        self._wire = wire
        self._setup = setup
        self._hosted = Hosted(setup.name)
        self._lender = Lender()
        self._known: set[int] = set()

    def build(self, before: Outcome, fds: Iterator[int]) -> None:
        """Make the object, if what comes before it went well, and reply."""
        if not isinstance(before, Error):
            _make_own(self._setup.threads)
            before = self._hosted.build(None, lambda: taken(self._setup.build, fds))
        self.reply(0, before)

    def answer(self, body: bytes, fds: list[int]) -> None:
        """Carry out a request and reply."""
        request: Request = pickle.loads(body)  # noqa: S301  our own driver wrote it
        rest = iter(fds)
        sharing.here.learn(request.fresh, rest)
        sharing.here.forget(request.gone)
        self._lender.returned.extend(request.returned)
        self.reply(request.serial, self._outcome(request, rest))

    def reply(self, serial: int, outcome: Outcome) -> None:
        """Send what became of a request."""
        fds: list[int] = []
        encoded = attempted(self._encoded, serial, outcome, fds)
        if isinstance(encoded, Error):
            close_all(fds)
            fds, encoded = [], Value(Reply(serial, frozen(encoded.exception)))
        flush()
        self._wire.send(pickle.dumps(encoded.value), fds)

    def _outcome(self, request: Request, fds: Iterator[int]) -> Outcome:
        given_args = attempted(taken, request.args, fds)
        if isinstance(given_args, Error):
            return given_args
        return self._hosted.answer(request.method, given_args.value)

    def _encoded(self, serial: int, outcome: Outcome, fds: list[int]) -> Reply:
        if isinstance(outcome, Error):
            return Reply(serial, frozen(outcome.exception))
        if not isinstance(outcome.value, Parcel):
            return Reply(serial, given(pack(outcome.value), fds))
        return self._parcel(serial, outcome.value, fds)

    def _parcel(self, serial: int, parcel: Parcel, fds: list[int]) -> Reply:
        head, body = pack(parcel.head), pack(parcel.body)
        value = given(head, fds)
        loan, block = lent(body, self._lender)
        fresh, fresh_fds = introduced([block] if block else [], self._known)
        fds[:0] = fresh_fds
        return Reply(serial, value, loan, fresh, self._lender.gone(self._known))


def _make_own(threads: int) -> None:
    """Threads as asked for, random states that no other worker has."""
    torch.set_num_threads(threads)
    random.seed()
    np.random.seed()  # noqa: NPY002  users draw from it
    torch.seed()
