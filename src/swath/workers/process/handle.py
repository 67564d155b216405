"""What the driver holds of a worker process."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from swath.errors import PayloadLost
from swath.workers.base import Handle, Job
from swath.workers.hosting import Loss
from swath.workers.outcome import Error, Outcome, Value, thawed
from swath.workers.packing import unpack
from swath.workers.process.blocks import Block, Borrower, Bytes, Lender
from swath.workers.process.cargo import introduced, taken, viewed
from swath.workers.process.messages import Cargo, Reply, Request
from swath.workers.process.nursing import Nursing
from swath.workers.process.reader import Line
from swath.workers.process.wire import Frame, close_all
from swath.workers.tickets import Ticket


class ProcessHandle(Handle):
    """A worker process, its wire, and the calls it has not answered.

    Args:
        job: how it is brought up.
        number: what it is called in its nursery.
        nursing: of the nursery that forks it.
        lender: of blocks that calls name.

    Attributes:
        line: its wire; set before anything else happens.
        pid: its process, as soon as that is known.
        killed: why we end it, if we do.
    """

    line: Line

    def __init__(self, job: Job, number: int, nursing: Nursing, lender: Lender) -> None:
        super().__init__(job)
        self.number = number
        self.nursing = nursing
        self._lender = lender
        self.pid: int | None = None
        self.killed: str | None = None
        self._lock = threading.Lock()
        self._serials = count(1)
        self._calls: dict[int, tuple[Ticket, Iterable[int]]] = {0: (self.ready, ())}
        self._end: Loss | None = None
        self._known: set[int] = set()
        self._seen = Borrower(writable=True)
        self._returned: deque[int] = deque()

    def send(self, ticket: Ticket, args: Cargo, fds: list[int], named: dict[int, Block]) -> Loss | None:
        """Send a call.

        Args:
            ticket: where the answer goes.
            args: what is passed.
            fds: its descriptors; gone afterwards.
            named: blocks that the arguments name.

        Returns:
            How the worker has ended, if it has.

        Raises:
            OSError: too many files are open.
        """
        with self._lock:
            if self._end is not None:
                close_all(fds)
                return self._end
            fresh, fresh_fds = introduced(named.values(), self._known)
            serial = next(self._serials)
            self._calls[serial] = ticket, tuple(named)
            gone = self._lender.gone(self._known) if named else ()
            request = Request(serial, ticket.method, args, fresh, gone, self._take_returned())
            self.line.send(pickle.dumps(request), [*fresh_fds, *fds])
        return None

    def receive(self, frame: Frame) -> tuple[Ticket, Outcome]:
        """Which call a frame answers, and how; blocks that the call named go back."""
        reply: Reply = pickle.loads(frame.body)  # noqa: S301  our own worker wrote it
        fds = iter(frame.fds)
        self._seen.learn(reply.fresh, fds)
        self._seen.forget(reply.gone)
        with self._lock:
            ticket, named = self._calls.pop(reply.serial)
        self._lender.returned.extend(named)
        return ticket, self._outcome(reply, fds)

    def end(self, loss: Loss) -> list[Ticket]:
        """Nothing will be sent any more; the calls that were open. None the second time."""
        with self._lock:
            if self._end is not None:
                return []
            self._end = loss
            calls = list(self._calls.values())
            self._calls.clear()
        self._seen.close()
        for _, named in calls:
            self._lender.returned.extend(named)
        return [ticket for ticket, _ in calls]

    def _take_returned(self) -> tuple[int, ...]:
        returned = []
        while self._returned:
            returned.append(self._returned.popleft())
        return tuple(returned)

    def _outcome(self, reply: Reply, fds: Any) -> Outcome:
        lease = None
        if reply.body is not None and reply.body.block:
            lease = leased(self._seen[reply.body.block], self._returned.append, reply.body.block)
        try:
            if isinstance(reply.value, bytes):
                return Error(thawed(reply.value))
            value = taken(reply.value, fds)
        except BaseException as error:  # noqa: BLE001  whatever users' classes do when they are rebuilt
            return Error(error)
        return Value(value if reply.body is None else Arrived(value, reply.body, lease))


class Arrived:
    """A parcel from a process; its body lies in a block of the worker until nobody sees it any more.

    Args:
        head: the small part.
        body: where the large part is.
        lease: the block; it goes back when this object and all views of it are gone.
    """

    def __init__(self, head: Any, body: Cargo, lease: Bytes | None) -> None:
        self.head = head
        self._body: Cargo | None = body
        self._lease = lease

    def open(self) -> Any:
        """The large part; its arrays are views, and keep the block from being written anew while they live.

        Raises:
            PayloadLost: it was closed.
        """
        if self._body is None:
            raise PayloadLost("the parcel is closed; open it before")
        if self._lease is None:
            return unpack(self._body.head, self._body.inline)
        return viewed(self._body, self._lease)

    def close(self) -> None:
        """Let go of it."""
        self._body = self._lease = None


def leased(view: Bytes, give_back: Callable[[int], None], block: int) -> Bytes:
    """The block, once more; it is given back when the result and all its views are gone."""
    lease = view[:]
    weakref.finalize(lease, give_back, block).atexit = False
    return lease
