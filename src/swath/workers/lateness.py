"""Who takes too long: every call that somebody waits for is to be answered in time, counted from when its turn came.

A worker answers one call after another, so the time of a call begins when it is sent, when the one before it is
answered, or when the worker is up, whichever comes last. Where a timed call waits, the calls before it are held to the
same time: none may keep it waiting for ever.
Pure: tickets know when they were sent and settled. One thread at a time.
"""

from __future__ import annotations

from collections import deque
from math import inf

from swath.workers.tickets import Name, Ticket


class Lateness:
    """Calls to all workers, and which are late.

    Args:
        patience: seconds that a call may take; `None` for any time.

    Attributes:
        due_at: when to look for late ones, at the latest; seconds of `time.monotonic`.
    """

    def __init__(self, patience: float | None) -> None:
        self.due_at = inf
        self._patience = inf if patience is None else patience
        self._calls: dict[Name, deque[tuple[Ticket, bool]]] = {}  # oldest first, with whether they are timed
        self._free: dict[Name, float] = {}  # since when there has been nothing older to do

    def begun(self, name: Name, since: float) -> None:
        """A worker is up, and can begin with what it was asked before."""
        self._free[name] = since
        self.due_at = min(self.due_at, since + self._patience)

    def called(self, ticket: Ticket, *, timed: bool) -> None:
        """A call was sent."""
        self.answered(ticket.name)
        self._calls.setdefault(ticket.name, deque()).append((ticket, timed))
        if timed:
            self.due_at = min(self.due_at, ticket.sent + self._patience)

    def answered(self, name: Name) -> None:
        """Let go of answered calls of a worker."""
        calls = self._calls.get(name)
        while calls and (settled := calls[0][0].settled) is not None:
            self._free[name] = settled
            calls.popleft()

    def ended(self, name: Name) -> None:
        """A life is over, and nobody late any more."""
        self._calls.pop(name, None)
        self._free.pop(name, None)

    def late(self, now: float) -> list[Ticket]:
        """The calls that have taken too long."""
        begun = {}
        for name, calls in self._calls.items():
            self.answered(name)
            if any(timed for _, timed in calls):
                ticket, _ = calls[0]
                begun[ticket] = max(ticket.sent, self._free.get(name, inf))
        self.due_at = min(begun.values(), default=inf) + self._patience
        return [ticket for ticket, since in begun.items() if since + self._patience <= now]
