"""What the driver knows: of what it has asked for, and of its workers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from swath.collect.asks import Head
from swath.collect.worker import Tally
from swath.errors import WorkerLost
from swath.workers.outcome import Error
from swath.workers.tickets import Name, Received, Ticket


class Tallies:
    """Keeps the last tally of every life; tallies only grow within a life."""

    def __init__(self) -> None:
        self._of: dict[Name, Tally] = {}

    def note(self, name: Name, tally: Tally) -> int:
        """What this life says of itself by now; how many further frames it has lost since it was last heard of."""
        before = self._of.get(name, Tally())
        self._of[name] = tally
        return tally.frames_discarded - before.frames_discarded

    def total(self) -> Tally:
        """The sum over all lives."""
        tallies = list(self._of.values())
        return Tally(*(sum(getattr(tally, field.name) for tally in tallies) for field in fields(Tally)))


@dataclass(eq=False)
class Sent:
    """A fragment that was asked for.

    Attributes:
        ticket: of the call.
        number: of the request; only grows.
        frames: how many were asked for.
        randomly: with random actions.
        insisted: asked for after its predecessor was dropped as too old, so that it is delivered whatever its age.
        void: what it brings is not wanted any more.
        taken: it is being delivered; its worker may be asked for another.
        received: the fragment, once it is settled.
        worker: who was asked.
    """

    ticket: Ticket
    number: int
    frames: int
    randomly: bool = False
    insisted: bool = False
    void: bool = False
    taken: bool = False
    received: Received | None = None
    worker: int = field(init=False)

    def __post_init__(self) -> None:
        self.worker = self.ticket.name.worker

    @property
    def is_done(self) -> bool:
        """Whether there is an answer that is not booked."""
        return self.received is None and self.ticket.done

    @property
    def is_lost(self) -> bool:
        """Whether its worker has died before it was made."""
        outcome = self.ticket.outcome
        return isinstance(outcome, Error) and isinstance(outcome.exception, WorkerLost)

    @property
    def head(self) -> Head:
        """What is known of the fragment."""
        assert self.received is not None
        head: Head = self.received.head
        return head


@dataclass
class Known:
    """What the driver has been told of its workers.

    Attributes:
        tallies: what went wrong in them.
        fragments_lost: with workers that died, or by their stores.
        next_ids: above every trajectory id given, by worker.
        versions: with which their last fragments were made.
        lags: how many versions behind the newest that was meant for them these were when they arrived.
        lives: in which of their lives that was.
        frames: collected, by worker.
        fragments: made, by worker, also before its state was saved and loaded.
        sent: frames that each life has sent, by its own account.
        arrived: how many of these have arrived.
        waiting: frames that wait in each life to be written by it.
    """

    tallies: Tallies = field(default_factory=Tallies)
    fragments_lost: int = 0
    next_ids: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    lags: dict[int, int] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    frames: dict[int, int] = field(default_factory=dict)
    fragments: dict[int, int] = field(default_factory=dict)
    sent: dict[Name, int] = field(default_factory=dict)
    arrived: dict[Name, int] = field(default_factory=dict)
    waiting: dict[Name, int] = field(default_factory=dict)
    _mourned: set[Name] = field(default_factory=set)

    def mourn(self, name: Name) -> None:
        """A life has ended; what it was working on is lost, what it would have begun later is not."""
        self.fragments_lost += name not in self._mourned
        self._mourned.add(name)

    def strayed(self, name: Name) -> int:
        """How many frames a life has sent that have not arrived; they are not missed again."""
        missing = max(0, self.sent.get(name, 0) - self.arrived.get(name, 0))
        self.arrived[name] = self.arrived.get(name, 0) + missing
        self._collected(name, missing)
        return missing

    def note(self, name: Name, tally: Tally) -> None:
        """What a life says went wrong in it; good frames that it has lost were collected."""
        self._collected(name, self.tallies.note(name, tally))

    def book(self, sent: Sent) -> None:
        """A fragment was made, and has arrived."""
        name, head = sent.ticket.name, sent.head
        self.sent[name] = max(head.sent, self.sent.get(name, 0))
        self.arrived[name] = self.arrived.get(name, 0) + head.frames
        self.next_ids[name.worker] = head.next_id
        self.versions[name.worker] = head.version
        self.lives[name.worker] = head.life
        self.fragments[name.worker] = self.fragments.get(name.worker, 0) + 1
        self.note(name, head.tally)
        self._collected(name, head.frames)

    def _collected(self, name: Name, frames: int) -> None:
        self.frames[name.worker] = self.frames.get(name.worker, 0) + frames
