"""A request to one worker, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swath.errors import WorkerLost
from swath.workers.tickets import Name, Ticket


@dataclass(eq=False)
class Request:
    """What one worker was asked for. It settles once: with a reply, with what was raised, or with its worker's loss.

    Attributes:
        ticket: of the call.
        number: of the request; only grows.
        asked: what for, as the caller puts it.
        insisted: what comes of it is delivered, however old it is.
        dropped: nobody wants what comes of it any more.
        taken: what came of it is being delivered; its worker may be asked again.
        closed: it has come to its end.
        reply: what came of it, once it is settled and there is something.
    """

    ticket: Ticket
    number: int
    asked: Any = None
    insisted: bool = False
    dropped: bool = False
    taken: bool = False
    closed: bool = False
    reply: Any = None

    @property
    def name(self) -> Name:
        """Which life of which worker was asked."""
        return self.ticket.name

    @property
    def worker(self) -> int:
        """Who was asked."""
        return self.ticket.name.worker

    @property
    def answered(self) -> bool:
        """Whether there is an answer that is not settled."""
        return self.reply is None and self.ticket.done

    @property
    def lost(self) -> bool:
        """Whether its worker has died before it answered."""
        return isinstance(self.ticket.error, WorkerLost)
