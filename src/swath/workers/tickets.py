"""What we hold of a call: its outcome appears when there is one, whoever brings it.

call ─▶ Ticket ◀─settle─ (reader thread | callback | the caller itself)
          └─▶ TicketMonitor.wait: returns what is done, at the latest after a deadline, or when interrupted
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from swath.errors import PayloadLost
from swath.workers.outcome import Error, Outcome

SIGNALS_S = 1.0
"""How long a wait lasts before it begins again: Python runs its handler of Ctrl-C then, if the system gave the signal
to another thread."""


Interrupted: TypeAlias = Callable[[], bool]
"""Whether a wait is to end."""

_numbers = count(1)


class Name(NamedTuple):
    """Which life of which worker.

    Attributes:
        worker: index.
        life: 0, 1, 2, …
    """

    worker: int
    life: int


class Ticket:
    """A call to a worker; filled in once.

    Args:
        name: who was called.
        method: what was called.

    Attributes:
        number: no other ticket of this process has it.
        timed: whether it has a deadline.
        sent: when, in seconds of `time.monotonic`.
    """

    __slots__ = ("method", "name", "number", "outcome", "sent", "timed")

    def __init__(self, name: Name, method: str) -> None:
        self.name = name
        self.method = method
        self.number = next(_numbers)
        self.timed = False
        self.sent = time.monotonic()
        self.outcome: Outcome | None = None

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return self.outcome is not None

    def settle(self, outcome: Outcome) -> None:
        """Fill in the outcome, where nobody waits for it yet; else see `TicketMonitor.settle`."""
        self.outcome = outcome

    @property
    def error(self) -> BaseException | None:
        """What the call raised, `WorkerLost` if its worker has died; `None` if it returned, or is not done."""
        return self.outcome.exception if isinstance(self.outcome, Error) else None

    @property
    def value(self) -> Any:
        """What the call returned.

        Raises:
            BaseException: what the call raised.
        """
        assert self.outcome is not None, "wait for the ticket first"
        if isinstance(self.outcome, Error):
            raise self.outcome.exception
        return self.outcome.value


class Received:
    """A parcel that has arrived; its body is fetched when it is wanted.

    Args:
        head: the small part.
        load: gives the large part; what it holds is let go of when the parcel is closed.
    """

    def __init__(self, head: Any, load: Callable[[], Any]) -> None:
        self.head = head
        self._load: Callable[[], Any] | None = load

    def open(self) -> Any:
        """The large part; its arrays may be views.

        Raises:
            PayloadLost: it was closed, or is gone; its worker lives.
        """
        if self._load is None:
            raise PayloadLost("the parcel is closed; open it before")
        return self._load()

    def close(self) -> None:
        """Give its memory back, once nobody has a view. Twice is fine."""
        self._load = None


class TicketMonitor:
    """Where tickets are settled and waited for, from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def settle(self, ticket: Ticket, outcome: Outcome) -> None:
        """Fill in the outcome; if there is one already, that stays."""
        with self._changed:
            if ticket.outcome is None:
                ticket.settle(outcome)
                self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait look whether they are interrupted."""
        with self._changed:
            self._changed.notify_all()

    def wait(
        self, tickets: Sequence[Ticket], timeout: float | None = None, interrupted: Interrupted | None = None
    ) -> list[Ticket]:
        """The tickets that are done, in the order given; waits for the first if there is none.

        Args:
            tickets: whose outcome is waited for; may be none.
            timeout: in seconds; an empty list is returned then. `None` waits until something happens.
            interrupted: looked at after each `wake`; true ends the wait.
        """

        def over() -> bool:
            return any(ticket.done for ticket in tickets) or (interrupted is not None and interrupted())

        until = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not over() and (left := until - time.monotonic()) > 0:
                self._changed.wait(min(left, SIGNALS_S))
        return [ticket for ticket in tickets if ticket.done]
