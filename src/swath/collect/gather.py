"""Who is asked next, and whose fragment comes next: what its two ways have in common.

    all_of    one share per row; complete when every row is in, whatever the order of arrival
    first_of  one fragment after another, as they are ready

Both ask through a `Desk` and wait on its fleet. Lost shares are asked for again: of the worker's next life, or of
another worker when it is gone for good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from swath.collect.books import Sent
from swath.collect.desk import Desk
from swath.errors import Closed
from swath.workers.tickets import Ticket

Interrupted = Callable[[], bool]


@dataclass
class Pace:
    """How far ahead workers are asked, and how old their fragments may be.

    Attributes:
        prefetch: how many fragments a worker, or further batches, are asked for before one is handed out.
        max_staleness: most versions that a fragment may be behind; `None` for any.
        random_batches: how many of the batches that are asked for next are random.
    """

    prefetch: int
    max_staleness: int | None = None
    random_batches: int = 0

    def next_is_random(self) -> bool:
        """Whether the next batch to be asked for is random; it is then counted."""
        randomly = self.random_batches > 0
        self.random_batches -= randomly
        return randomly


class Gather(Protocol):
    """One of the two ways."""

    def next(self, interrupted: Interrupted) -> list[Sent] | None:
        """What makes up the next batch; `None` if there is nothing to wait for.

        Raises:
            Closed: interrupted.
            FleetFailed: too few workers are left.
            Exception: what user code raised in a worker.
        """

    def ahead(self) -> None:
        """A batch is about to be handed out: ask for those that come after it."""

    def clear_up(self) -> None:
        """A draw begins: forget what one that was interrupted in the midst of asking has left."""

    def again(self, lost: Collection[Sent]) -> None:
        """Of what was given last, these are lost."""

    def forget(self, workers: Collection[int] | None = None) -> None:
        """What these workers, or all, were asked for is not wanted any more."""


def wait_for(desk: Desk, tickets: Sequence[Ticket], interrupted: Interrupted, seen: tuple[int, bool]) -> None:
    """Wait until one of the tickets is done, or there is other news than what was `seen`.

    Raises:
        Closed: interrupted.
        FleetFailed: too few workers are left.
    """
    desk.sweep()
    changes, held = seen
    desk.fleet.wait(tickets, interrupted=lambda: interrupted() or desk.held != held, seen=changes)
    if interrupted():
        raise Closed("this collector was shut down during a draw; build another one")
