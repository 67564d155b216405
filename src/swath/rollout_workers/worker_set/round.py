"""One round of all workers: each is sent something as soon as it is free, and all answers are waited for together.

waiting ─ free ─▶ sent ─▶ answered, or not in time
        ─ late with an earlier call ─▶ sent to when that is answered, if there is time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from swath.rollout_workers.worker_set.crew import Crew
from swath.workers.tickets import Ticket


class Round:
    """Something that is sent to several workers, once to each; to those that are free at once.

    Args:
        crew: of workers.
        workers: ids.
        send: sends it to a worker that is free; None if there is nothing to send to it.

    Attributes:
        waiting: ids of workers that were not free so far.
        sent: by id, in the order in which they were sent.
    """

    def __init__(self, crew: Crew, workers: Iterable[int], send: Callable[[int], Ticket | None]) -> None:
        self.waiting, self.sent = list(workers), dict[int, Ticket]()
        self._crew, self._send = crew, send
        self._send_to_free()

    @property
    def unanswered(self) -> list[Ticket]:
        """What was sent, and is not answered yet."""
        return [ticket for ticket in self.sent.values() if not ticket.done]

    def wait(self, until: float, *, for_returning: bool) -> None:
        """Wait until all have answered, or it is time.

        Args:
            until: when.
            for_returning: also until those that are coming back have come, and have answered.
        """
        while (open_ := self._open()) or (for_returning and self._crew.coming(self.waiting)):
            if (left := until - monotonic()) <= 0:
                return
            self._crew.wait(open_, left)
            self._send_to_free()

    def _send_to_free(self) -> None:
        for worker in [each for each in self.waiting if self._crew.is_free(each)]:
            self.waiting.remove(worker)
            if (ticket := self._send(worker)) is not None:
                self.sent[worker] = ticket

    def _open(self) -> list[Ticket]:
        """What is waited for."""
        owed = [ticket for worker in self.waiting for ticket in self._crew.owed(worker)]
        return [*self.unanswered, *(ticket for ticket in owed if not ticket.done)]
