"""Tickets: the caller's side of a call to a worker.

call ─▶ Ticket ◀─settle─ (reader thread | callback | the caller itself)
          └─▶ TicketMonitor.wait: returns settled tickets, at the latest after a deadline, or when interrupted
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
"""Returns whether a wait must end."""

_numbers = count(1)


class Name(NamedTuple):
    """The name of one life of a worker.

    Attributes:
        worker: index.
        life: 0, 1, 2, …
    """

    worker: int
    life: int

    def __str__(self) -> str:
        return f"worker {self.worker} (life {self.life})"


class ProcessName(Name):
    """The name of one life of an env process."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"env process {self.worker} (life {self.life})"


class Ticket:
    """A call to a worker; its outcome is set once.

    Args:
        name: the called life.
        method: the called method.

    Attributes:
        number: unique among the tickets of this process.
        timed: whether the call has a deadline.
        sent: time of the call, in seconds of `time.monotonic`.
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
        """Return whether there is an outcome."""
        return self.outcome is not None

    def settle(self, outcome: Outcome) -> None:
        """Set the outcome of a ticket that no thread waits for; for others see `TicketMonitor.settle`."""
        self.outcome = outcome

    @property
    def error(self) -> BaseException | None:
        """Return the exception of the call, `WorkerLost` if its worker died; `None` if it returned or is not done."""
        return self.outcome.exception if isinstance(self.outcome, Error) else None

    @property
    def value(self) -> Any:
        """Return the value of the call.

        Raises:
            BaseException: the call raised it.
        """
        assert self.outcome is not None, "wait for the ticket first"
        if isinstance(self.outcome, Error):
            raise self.outcome.exception
        return self.outcome.value


class Received:
    """A parcel that has arrived; its body is fetched on request.

    Args:
        head: the small part.
        load: returns the large part; dropped when the parcel is closed.
    """

    def __init__(self, head: Any, load: Callable[[], Any]) -> None:
        self.head = head
        self._load: Callable[[], Any] | None = load

    def open(self) -> Any:
        """Return the large part; its arrays may be views.

        Raises:
            PayloadLost: the parcel is closed, or its body is lost although the worker lives.
        """
        if self._load is None:
            raise PayloadLost("the parcel is closed; open it before")
        return self._load()

    def close(self) -> None:
        """Release the memory once no view of it is left. A second call does nothing."""
        self._load = None


class TicketMonitor:
    """Settles tickets and waits for them, from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def settle(self, ticket: Ticket, outcome: Outcome) -> None:
        """Set the outcome of a ticket that has none."""
        with self._changed:
            if ticket.outcome is None:
                ticket.settle(outcome)
                self._changed.notify_all()

    def wake(self) -> None:
        """Wake waiting threads, so that they check whether they are interrupted."""
        with self._changed:
            self._changed.notify_all()

    def wait(
        self, tickets: Sequence[Ticket], timeout: float | None = None, interrupted: Interrupted | None = None
    ) -> list[Ticket]:
        """Wait until at least one ticket is settled, and return those that are, in the order of the argument.

        Args:
            tickets: may be empty.
            timeout: time limit in seconds; the list is empty then. `None` waits without a limit.
            interrupted: called after each `wake`; true ends the wait.
        """

        def is_over() -> bool:
            return any(ticket.done for ticket in tickets) or (interrupted is not None and interrupted())

        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not is_over() and (remaining := deadline - time.monotonic()) > 0:
                self._changed.wait(min(remaining, SIGNALS_S))
        return [ticket for ticket in tickets if ticket.done]
