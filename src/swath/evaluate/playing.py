"""One evaluation on a fleet: who is there, who plays which part, who goes on, whose part is played again.

calls ─▶ open ─▶ news: answers │ lives that came or went │ stopped: Cancelled │ too late: WorkerLate
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any

from swath.errors import FleetFailed, PayloadLost, SwathError, WorkerLate, WorkerLost
from swath.evaluate.parts import Footage, Part, Report
from swath.evaluate.result import EpisodeRow
from swath.rollout.hosts.base import Seeding
from swath.weights.channel import Channel
from swath.workers.base import Handle
from swath.workers.fleet import Fleet
from swath.workers.hosting import described
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

    rows: Mapping[int, EpisodeRow]
    seconds: float
    seeding: Seeding
    footage: Sequence[Footage]


class Playing:
    """Plays the rounds of one evaluation.

    Args:
        fleet: the workers, all asked for.
        retries: how many may be lost.
        timeout_s: for one try, which begins anew when a worker is lost.
        stopped: looked at after each `wake` of the fleet; true ends what is being done with `Cancelled`.

    Attributes:
        losses: how many were lost.
    """

    def __init__(self, fleet: Fleet, retries: int, timeout_s: float, stopped: Callable[[], bool]) -> None:
        self._fleet, self._stopped = fleet, stopped
        self._retries, self._timeout_s = retries, timeout_s
        self._until = monotonic() + timeout_s
        self._open: dict[int, tuple[Handle, Ticket]] = {}
        self._reports: dict[int, Report] = {}
        self.losses = 0

    def call_the_roll(self) -> bool:
        """Whether there are enough workers. Who died while nobody asked is replaced, and that counts as no loss."""
        fleet = self._fleet
        try:
            fleet.look()
            self._open = {worker: (handle, fleet.call(handle, "present")) for worker, handle in fleet.up.items()}
            while self._open:
                self._close(self._news(fleet.changes, "present"))
        except FleetFailed:
            return False
        fleet.forgive()
        return fleet.failure is None

    def asked(self, method: str, *args: Any) -> Any:
        """The answer of any worker; where it is lost meanwhile another is asked, or its next life."""
        while True:
            seen = self._fleet.changes
            if not self._open:
                self._open = {
                    worker: (handle, self._fleet.call(handle, method, *args))
                    for worker, handle in islice(self._fleet.up.items(), 1)
                }
            for worker, ticket in self._close(self._news(seen, method)):
                try:
                    return ticket.value
                except WorkerLost as loss:
                    self._lost(worker, loss)

    def round(self, part: Part, channel: Channel, progressed: Callable[[int], None]) -> Played:
        """Play a round; see `Company.perform` for what it raises.

        Args:
            part: the round.
            channel: whence workers get their weights.
            progressed: told how many episodes are complete.
        """
        self._reports, footage = {}, list[Footage]()
        fleet, workers = self._fleet, len(self._fleet.standings())
        while len(over := [report for report in self._reports.values() if report.over]) < workers:
            seen = fleet.changes
            self._ask(part, channel)
            footage.extend(self._heard(self._news(seen, part)))
            progressed(self._complete())
        rows = {episode: row for report in over for episode, row in report.rows.items()}
        return Played(rows, max(report.seconds for report in over), self._reports[0].seeding, footage)

    def dump(self, step: int, *, write: bool) -> list[str]:
        """After the last round: recorders in the envs let go of what they have seen; what went wrong, in words.

        Args:
            step: of training.
            write: whether they are to write it.
        """
        for worker, handle in self._fleet.up.items():
            if worker in self._reports and self._reports[worker].records:
                self._open[worker] = handle, self._fleet.call(handle, "dump", step, write)
        failures: list[str] = []
        while self._open:
            try:
                done = self._news(self._fleet.changes, "dump")
            except WorkerLate:
                return [*failures, f"recorders of workers {sorted(self._open)} did not come to an end in time"]
            for _, ticket in self._close(done):
                failures.extend(_told(ticket))
        return failures

    def _news(self, seen: int, what: Part | str) -> list[Ticket]:
        """Answers; none if workers have come or gone.

        Args:
            seen: changes of the fleet that are known.
            what: is being done.
        """
        left = max(0.0, self._until - monotonic())
        done = self._fleet.wait([ticket for _, ticket in self._open.values()], left, self._stopped, seen)
        if self._stopped():
            raise Cancelled
        if not done and monotonic() >= self._until:
            raise self._late(what)
        return done

    def _close(self, done: Sequence[Ticket]) -> list[tuple[int, Ticket]]:
        """Answered calls are no longer open; whose they were."""
        closed = [(worker, ticket) for worker, (_, ticket) in self._open.items() if ticket in done]
        for worker, _ in closed:
            del self._open[worker]
        return closed

    def _complete(self) -> int:
        return sum(report.complete for report in self._reports.values())

    def let_go(self) -> None:
        """Wait for slices that are being played though nobody wants them; end workers that do not come back."""
        if not self._open:
            return
        with suppress(WorkerLate):  # those are seen to below
            self._fleet.answers([ticket for _, ticket in self._open.values()], GRACE_S)
        for handle, ticket in self._open.values():
            if not ticket.done:
                name = handle.name
                why = f"{described(name)} was ended: it is stuck in code of the user"
                self._fleet.replace(handle, WorkerLost(why, worker=name.worker, life=name.life))
            elif isinstance(ticket.outcome, Value) and hasattr(ticket.outcome.value, "close"):
                ticket.outcome.value.close()
        self._open.clear()

    def _ask(self, part: Part, channel: Channel) -> None:
        """Send their part to those who have none and are up."""
        for worker, handle in self._fleet.up.items():
            report = self._reports.get(worker)
            if worker not in self._open and (report is None or not report.over):
                with channel.update_for(handle.name) as update:
                    self._open[worker] = handle, self._fleet.call(handle, "play", update, part)

    def _heard(self, done: Sequence[Ticket]) -> list[Footage]:
        """Take note of answers, and let those go on who are not through."""
        footage = []
        handles = {worker: handle for worker, (handle, _) in self._open.items()}
        for worker, ticket in self._close(done):
            try:
                answer = ticket.value
                if not isinstance(answer, Report):
                    footage.append(answer.open().kept())
            except (WorkerLost, PayloadLost) as loss:
                self._lost(worker, loss)
                continue
            if isinstance(answer, Report):
                self._reports[worker] = answer
            else:
                self._reports[worker] = answer.head
                answer.close()
            if not self._reports[worker].over:
                self._open[worker] = handles[worker], self._fleet.call(handles[worker], "go_on")
        return footage

    def _lost(self, worker: int, loss: SwathError) -> None:
        self._reports.pop(worker, None)
        self.losses += 1
        if self.losses > self._retries:
            raise loss
        self._until = monotonic() + self._timeout_s

    def _late(self, what: Part | str) -> WorkerLate:
        late = tuple(sorted(self._open))
        if isinstance(what, str):
            doing = f"{what}() of workers {list(late)}"
        else:
            doing = f"the evaluation, with {self._complete()} of {what.episodes.stop} episodes complete,"
        return WorkerLate(
            f"{doing} took longer than timeout_s={self._timeout_s:g}; workers {list(late)} are ended where they are "
            "stuck, and replaced; give it more time, fewer episodes, or max_steps",
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
