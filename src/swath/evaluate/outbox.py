"""Outcomes on their way to their readers: shown first, then readable, each once.

taken ──Publish──▶ shown ──Published──▶ unread ──▶ read
"""

from __future__ import annotations

from collections import deque
from typing import Generic

from swath.evaluate.busy import InboxRules
from swath.evaluate.inbox_events import Accepted, Deliver, Outcome, Publish, Published, Request


class Outbox(Generic[Request, Outcome]):
    """The half of an inbox behind the workers. Pure.

    Args:
        rules: of the inbox.

    Attributes:
        dropped: how many results nobody read in time.
    """

    def __init__(self, rules: InboxRules) -> None:
        self._rules = rules
        self._shown: Accepted[Request] | None = None
        self._unread: deque[tuple[Outcome, bool]] = deque()  # and whether it is an error
        self._own: dict[int, Outcome] = {}  # of sync requests, by number
        self.dropped = 0

    @property
    def unread(self) -> int:
        """How many outcomes of async requests can be read."""
        return len(self._unread)

    @property
    def showing(self) -> bool:
        """Whether an outcome is being shown."""
        return self._shown is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be shown or read."""
        return not (self.showing or self._unread or self._own)

    def take(self, accepted: Accepted[Request], outcome: Outcome) -> Publish[Request, Outcome]:
        """What came of a request is to be shown; none is being shown yet."""
        self._shown = accepted
        return Publish(accepted, outcome)

    def shown(self, number: int) -> Accepted[Request] | None:
        """That is done; `None` if it was not this request that was being shown."""
        shown = self._shown
        if shown is None or shown.number != number:
            return None
        self._shown = None
        return shown

    def keep(self, published: Published[Outcome], *, sync: bool) -> None:
        """It can be read now: by the caller of a sync request, by anybody otherwise."""
        if sync:
            self._own[published.number] = published.outcome
            return
        self._unread.append((published.outcome, published.failed))
        if self._rules.reported and self.unread > self._rules.most_unread:
            self._drop_one()

    def _drop_one(self) -> None:
        """The oldest result; errors were shown to nobody, so they go only where there is nothing else."""
        oldest = next((place for place, (_, failed) in enumerate(self._unread) if not failed), 0)
        del self._unread[oldest]
        self.dropped += 1

    def read(self, number: int | None) -> list[Deliver[Outcome]]:
        """The outcome of this sync request, or the oldest of the async ones; empty if there is none."""
        if number is None:
            return [Deliver(self._unread.popleft()[0])] if self._unread else []
        return [Deliver(self._own.pop(number))] if number in self._own else []

    def forget(self, number: int) -> None:
        """The caller of this sync request has left."""
        self._own.pop(number, None)
