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


class _Line:
    """Calls to one life of a worker, in order; those that are answered leave when somebody looks."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Ticket, bool]] = deque()
        self.free_since = inf

    def add(self, ticket: Ticket, *, timed: bool) -> None:
        self.advance()
        self._calls.append((ticket, timed))

    def advance(self) -> None:
        while self._calls and (settled := self._calls[0][0].settled) is not None:
            self.free_since = settled
            self._calls.popleft()

    def awaited(self) -> tuple[Ticket, float] | None:
        """The call whose turn it is, and since when, if a timed call waits for it or is it."""
        self.advance()
        if not any(timed for _, timed in self._calls):
            return None
        ticket, _ = self._calls[0]
        return ticket, max(ticket.sent, self.free_since)


class Lateness:
    """Calls to all workers, and which are late.

    Args:
        patience: seconds that a call may take; `None` for any time.

    Attributes:
        due_at: when to look for late ones, at the latest; seconds of `time.monotonic`.
    """

    def __init__(self, patience: float | None) -> None:
        self.patience = inf if patience is None else patience
        self.due_at = inf
        self._lines: dict[Name, _Line] = {}

    def begun(self, name: Name, since: float) -> None:
        """A worker is up, and can begin with what it was asked before."""
        line = self._lines.setdefault(name, _Line())
        line.free_since = since
        if line.awaited() is not None:
            self.due_at = min(self.due_at, since + self.patience)

    def called(self, ticket: Ticket, *, timed: bool) -> None:
        """A call was sent."""
        self._lines.setdefault(ticket.name, _Line()).add(ticket, timed=timed)
        if timed:
            self.due_at = min(self.due_at, ticket.sent + self.patience)

    def answered(self, ticket: Ticket) -> None:
        """An answer was taken note of: let go of it."""
        if ticket.name in self._lines:
            self._lines[ticket.name].advance()

    def ended(self, name: Name) -> None:
        """A life is over, and nobody late any more."""
        self._lines.pop(name, None)

    def late(self, now: float) -> list[Ticket]:
        """The calls that have taken too long."""
        awaited = [call for line in self._lines.values() if (call := line.awaited()) is not None]
        self.due_at = min((since + self.patience for _, since in awaited), default=inf)
        return [ticket for ticket, since in awaited if since + self.patience <= now]
