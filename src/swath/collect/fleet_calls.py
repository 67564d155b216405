"""Calls of methods of a collection's workers, between two fragments.

send ─▶ tickets by worker ─▶ answers    who dies meanwhile gives none; the next life is built as if it had been called
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swath.collect.desk import Desk
from swath.collect.gate import Gate
from swath.errors import WorkerLost
from swath.workers.tickets import Ticket

NO_KEYWORDS: Mapping[str, Any] = {}


class FleetCalls:
    """Calls workers; any thread may, also while another one draws.

    Args:
        gate: of the collection: after its shutdown nobody is called.
        desk: asks the workers.
    """

    def __init__(self, gate: Gate, desk: Desk) -> None:
        self._gate, self._desk = gate, desk

    def control(
        self,
        method: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = NO_KEYWORDS,
        workers: Sequence[int] | None = None,
    ) -> dict[int, Any]:
        """Call a method of every worker, or of these, between two fragments; the answers by worker.

        Workers that die meanwhile give none; their next lives are built as if they had been called.

        Raises:
            Closed: after shutdown.
            WorkerLate: somebody did not answer in time.
            Exception: what a worker raised.
        """
        return self.answers(self.send(method, args, kwargs, workers))

    def everyone(self, calls: Mapping[int, tuple[str, Sequence[Any], Mapping[str, Any]]]) -> dict[int, Any]:
        """As `control`, with a call for each worker; those that are being replaced are waited for, and called then.

        Workers that are gone give no answer.

        Raises:
            Closed: after shutdown.
            WorkerLate: somebody did not answer in time.
            Exception: what a worker raised.
        """
        self._gate.require_open()
        fleet = self._desk.fleet
        answers: dict[int, Any] = {}
        while missing := [worker for worker in calls if worker not in answers and not self._desk.is_gone(worker)]:
            fleet.settle(missing)
            tickets: dict[int, Ticket] = {}
            for worker in missing:
                tickets |= self.send(*calls[worker], [worker])
            if not tickets:
                break
            answers |= self.answers(tickets)
        return {worker: answers[worker] for worker in calls if worker in answers}

    def first(self, method: str, *args: Any) -> Any:
        """The answer of the first worker that is not gone; see `everyone`.

        Raises:
            FleetFailed, WorkerLost: there is none.
        """
        for worker in sorted(self._desk.frames):
            if answers := self.everyone({worker: (method, args, NO_KEYWORDS)}):
                return answers[worker]
        self._desk.require_enough()
        raise WorkerLost(f"no worker is left to answer {method}{args}; build another collector")

    def send(
        self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], workers: Sequence[int] | None = None
    ) -> dict[int, Ticket]:
        """Send a control call to every worker, or to these; the tickets of those that are up.

        Workers that are still being built answer when they are: they are called, and not waited for.
        """
        self._gate.require_open()
        with self._desk.lock:
            fleet = self._desk.fleet
            begun = [worker for worker, one in fleet.standings().items() if one.phase in ("up", "starting")]
            asked = begun if workers is None else [worker for worker in workers if worker in begun]
            tickets = {worker: self._desk.control(worker, method, args, kwargs) for worker in asked}
            return {worker: ticket for worker, ticket in tickets.items() if worker in fleet.up}

    def answers(self, tickets: Mapping[int, Ticket], deadline: float | None = None) -> dict[int, Any]:
        """Wait for all of them; see `control`."""
        self._desk.fleet.answers(list(tickets.values()), deadline)
        with self._desk.lock:
            return {worker: ticket.value for worker, ticket in tickets.items() if self._desk.answered(ticket)}
