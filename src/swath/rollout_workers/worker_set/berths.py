"""What is known of each worker: what it was told, what it has answered, whether it may be asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from swath.workers.tickets import Name, Ticket


@dataclass
class Bringing:
    """News on their way to a worker.

    Attributes:
        ticket: of the call that brings them.
        version: of the weights that it has then.
    """

    ticket: Ticket
    version: int


@dataclass
class Berth:
    """One life of a worker.

    Attributes:
        name: which.
        begun: whether it was told anything.
        settled: whether it has taken in what its life begins with.
        revision: of the set's policies, as it was told; -1 before it was told any.
        vars_serial: of the set's global variables, likewise; 0 before it was told any.
        version: of the weights that it has.
        bringing: news that it has not answered, oldest first.
        refusal: what it raised at the last, if it did.
        late: calls that somebody has stopped waiting for, and that it has not answered.
    """

    name: Name
    begun: bool = False
    settled: bool = False
    revision: int = -1
    vars_serial: int = 0
    version: int = 0
    bringing: list[Bringing] = field(default_factory=list)
    refusal: BaseException | None = None
    late: list[Ticket] = field(default_factory=list)

    @property
    def is_late(self) -> bool:
        """Whether it owes an answer that nobody waits for any more."""
        self.late = [ticket for ticket in self.late if not ticket.done]
        return bool(self.late)

    def forget(self) -> None:
        """What it was told did not arrive: it is to be told all again."""
        self.revision, self.vars_serial = -1, 0
