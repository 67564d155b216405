"""A handle that keeps a list of what its worker owes."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from swath.workers.base import Handle, Job
from swath.workers.tickets import Ticket

End = TypeVar("End")
"""What is said of how a worker has ended."""


class OwingHandle(Handle, Generic[End]):
    """What we hold of a worker, and its tickets that are not settled. Used by any thread."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._lock = threading.Lock()
        self._open: dict[Ticket, None] = {}
        self._end: End | None = None

    def opened(self, ticket: Ticket) -> End | None:
        """Note that the ticket is to be settled; how the worker has ended, if it has."""
        with self._lock:
            if self._end is None:
                self._open[ticket] = None
            return self._end

    def answered(self, ticket: Ticket) -> None:
        """Note that the ticket is settled."""
        with self._lock:
            self._open.pop(ticket, None)

    def end(self, how: End) -> list[Ticket]:
        """The worker has ended; what is open. None the second time."""
        with self._lock:
            if self._end is not None:
                return []
            self._end = how
            left = list(self._open)
            self._open.clear()
        return left
