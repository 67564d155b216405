"""One evaluation on a fleet: who plays which part, who goes on, whose part is played again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from swath.errors import WorkerLate, WorkerLost
from swath.evaluate.ledger import Booked
from swath.evaluate.parts import Footage, Part, Report
from swath.rollout.hosts.specs import Seeding
from swath.weights.channel import Channel
from swath.workers.base import Handle
from swath.workers.fleet import Fleet
from swath.workers.outcome import Value
from swath.workers.tickets import Ticket

GRACE_S = 1.0
"""How long a slice that nobody waits for any more may take before its worker counts as stuck."""


class Cancelled(Exception):  # noqa: N818
    """An evaluation was stopped by its service. Stays inside the library."""


@dataclass(frozen=True)
class Played:
    """A round that is over.

    Attributes:
        rows: its episodes, by number.
        seconds: of the worker that took longest.
        seeding: how far seeds reached.
        footage: of all workers.
    """

    rows: Mapping[int, Booked]
    seconds: float
    seeding: Seeding
    footage: Sequence[Footage]


class Playing:
    """Plays the rounds of one evaluation.

    Args:
        fleet: the workers, all asked for.
        channel: their weights.
        retries: how many may be lost.
        timeout_s: for one try, which begins anew when a worker is lost.

    Attributes:
        losses: how many were lost.
    """

    def __init__(self, fleet: Fleet, channel: Channel, retries: int, timeout_s: float) -> None:
        self._fleet, self._channel = fleet, channel
        self._retries, self._timeout_s = retries, timeout_s
        self._until = monotonic() + timeout_s
        self._open: dict[int, tuple[Handle, Ticket]] = {}
        self._reports: dict[int, Report] = {}
        self.losses = 0

    def round(self, part: Part, stopped: Callable[[], bool], progressed: Callable[[int], None]) -> Played:
        """Play a round; see `Company.perform` for what it raises.

        Args:
            part: the round.
            stopped: true ends it with `Cancelled`.
            progressed: told how many episodes are complete.
        """
        self._reports, footage = {}, list[Footage]()
        fleet, workers = self._fleet, len(self._fleet.standings())
        while len(over := [report for report in self._reports.values() if report.over]) < workers:
            seen = fleet.changes
            self._ask(part)
            tickets = [ticket for _, ticket in self._open.values()]
            done = fleet.wait(tickets, self._left(), stopped, seen)
            footage.extend(self._heard(done))
            progressed(sum(report.complete for report in self._reports.values()))
            if stopped():
                raise Cancelled
            if not done and monotonic() >= self._until:
                raise self._late(part)
        rows = {episode: row for report in over for episode, row in report.rows.items()}
        return Played(rows, max(report.seconds for report in over), self._reports[0].seeding, footage)

    def dump(self, order: tuple[int, bool], stopped: Callable[[], bool]) -> list[str]:
        """After the last round: recorders in the envs let go of what they have seen; what went wrong, in words.

        Args:
            order: the training step, and whether they are to write it.
            stopped: true ends it with `Cancelled`.
        """
        for worker, handle in self._fleet.up.items():
            if worker in self._reports and self._reports[worker].records:
                self._open[worker] = handle, self._fleet.call(handle, "dump", *order)
        failures: list[str] = []
        while self._open:
            seen = self._fleet.changes
            done = self._fleet.wait([ticket for _, ticket in self._open.values()], self._left(), stopped, seen)
            for worker, (_, ticket) in list(self._open.items()):
                if ticket in done:
                    del self._open[worker]
                    failures.extend(_told(ticket))
            if stopped():
                raise Cancelled
            if not done and not self._left():
                return [*failures, f"recorders of workers {sorted(self._open)} did not come to an end in time"]
        return failures

    def _left(self) -> float:
        return max(0.0, self._until - monotonic())

    def let_go(self) -> None:
        """Wait for slices that are being played though nobody wants them; end workers that do not come back."""
        if not self._open:
            return
        with suppress(WorkerLate):  # those are seen to below
            self._fleet.answers([ticket for _, ticket in self._open.values()], GRACE_S)
        for handle, ticket in self._open.values():
            if not ticket.done:
                name = handle.name
                why = f"worker {name.worker} (life {name.life}) was ended: it is stuck in code of the user"
                self._fleet.replace(handle, WorkerLost(why, worker=name.worker, life=name.life))
            elif isinstance(ticket.outcome, Value) and not isinstance(ticket.outcome.value, Report | list):
                ticket.outcome.value.close()  # a parcel; a list is what recorders say
        self._open.clear()

    def _ask(self, part: Part) -> None:
        """Send their part to those who have none and are up."""
        for worker, handle in self._fleet.up.items():
            report = self._reports.get(worker)
            if worker not in self._open and (report is None or not report.over):
                with self._channel.update_for(handle.name) as update:
                    self._open[worker] = handle, self._fleet.call(handle, "play", update, part)

    def _heard(self, done: Sequence[Ticket]) -> list[Footage]:
        """Take note of answers, and let those go on who are not through."""
        footage = []
        for worker, (handle, ticket) in list(self._open.items()):
            if ticket not in done:
                continue
            del self._open[worker]
            try:
                answer = ticket.value
            except WorkerLost as loss:
                self._lost(worker, loss)
                continue
            if isinstance(answer, Report):
                self._reports[worker] = answer
            else:
                footage.append(answer.open().kept())
                self._reports[worker] = answer.head
                answer.close()
            if not self._reports[worker].over:
                self._open[worker] = handle, self._fleet.call(handle, "go_on")
        return footage

    def _lost(self, worker: int, loss: WorkerLost) -> None:
        self._reports.pop(worker, None)
        self.losses += 1
        if self.losses > self._retries:
            raise loss
        self._until = monotonic() + self._timeout_s

    def _late(self, part: Part) -> WorkerLate:
        done = sum(report.complete for report in self._reports.values())
        unfinished = {slot: n for report in self._reports.values() for slot, n in report.unfinished.items()}
        late = tuple(sorted(set(self._fleet.standings()) - {w for w, r in self._reports.items() if r.over}))
        return WorkerLate(
            f"the evaluation took longer than timeout_s={self._timeout_s:g}: {done} of {part.episodes.stop} episodes "
            f"complete; steps made in the unfinished ones, as far as is known: {unfinished}; workers {list(late)} are "
            "late, those that are stuck are ended and replaced; give it more time, fewer episodes, or max_steps",
            workers=late,
            deadline=self._timeout_s,
        )


def _told(ticket: Ticket) -> list[str]:
    """What a worker said of its recorders."""
    try:
        failures: list[str] = ticket.value
    except Exception as error:  # noqa: BLE001  it is told, and the evaluation stands
        return [f"{type(error).__name__}: {error}"]
    return failures
