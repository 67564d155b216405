"""Who is asked next, and whose fragment comes next: two ways, drawn from as generators of what is complete.

    all_of    one share per row; complete when every row is in, whatever the order of arrival
    first_of  one fragment after another, as they are ready

Both ask through a `Desk` and wait on its fleet. Lost shares are asked for again: of the worker's next life, or of
another worker when it is gone for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swath.collect.desk import Desk, Sent
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


@dataclass
class Round:
    """A synchronous batch in the making.

    Attributes:
        randomly: with random actions.
        shares: by row; `None` where it has to be asked for (again).
    """

    randomly: bool
    shares: dict[int, Sent | None] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every share is in."""
        return all(share is not None and share.received is not None for share in self.shares.values())

    def waiting(self) -> list[Sent]:
        """Shares that were asked for and are not in."""
        return [share for share in self.shares.values() if share is not None and share.received is None]


class AllOf:
    """Gathers synchronous batches.

    Args:
        desk: asks the workers.
        pace: how far ahead.
        rows: the workers whose shares make up a batch, in order.
        enough: with so many shares the others end at their next step; `None` waits for all.
    """

    def __init__(self, desk: Desk, pace: Pace, rows: list[int], enough: int | None = None) -> None:
        self._desk, self._pace, self.rows, self._enough = desk, pace, rows, enough
        self._rounds: deque[Round] = deque()
        self._stand_in = 0

    def begin(self) -> None:
        """The user draws: something must be asked for."""
        if not self._rounds:
            self._open_round()

    def ahead(self) -> None:
        """A batch is about to be handed out: ask for those that come after it."""
        while len(self._rounds) < self._pace.prefetch and self._open_round():
            self._ask_missing(self._rounds[-1])

    def next(self, interrupted: Interrupted) -> list[Sent] | None:
        """The shares of the next batch, in order of rows; `None` if there is nothing to wait for.

        Raises:
            Closed: interrupted.
            FleetFailed: too few workers are left.
            Exception: what user code raised; the other shares are kept.
        """
        desk = self._desk
        while True:
            seen = desk.fleet.changes
            with desk.lock:
                if not self._rounds:
                    return None
                current = self._rounds[0]
                self._settle(current)
                if current.complete:
                    self._rounds.popleft()
                    return [share for share in current.shares.values() if share is not None]
                for one in self._rounds:
                    self._ask_missing(one)
                self._hurry(current)
                tickets = [share.ticket for share in current.waiting()]
            wait_for(desk, tickets, interrupted, seen)

    def again(self, shares: list[Sent], lost: Sent) -> None:
        """A share turned out to be lost by its store: the batch is put back without it."""
        rows = dict(zip(self.rows, shares, strict=True))
        kept: dict[int, Sent | None] = {row: None if share is lost else share for row, share in rows.items()}
        self._rounds.appendleft(Round(lost.randomly, kept))

    def forget(self, workers: list[int] | None = None) -> None:
        """Shares of these workers, or all, are not wanted any more: they are asked for again with the next draw."""
        self._desk.void(workers)
        for one in self._rounds:
            one.shares = {row: None if share is None or share.void else share for row, share in one.shares.items()}

    def _open_round(self) -> bool:
        if self._rounds_asked() or not self._desk.may_ask:
            return False
        self._rounds.append(Round(self._pace.next_is_random(), dict.fromkeys(self.rows)))
        return True

    def _rounds_asked(self) -> bool:
        """Whether the last round has not been asked for yet, so that its frames are not counted as asked for."""
        return bool(self._rounds) and all(share is None for share in self._rounds[-1].shares.values())

    def _settle(self, current: Round) -> None:
        """Book what is in; an exception of user code leaves at once, what is not looked at yet is for the next draw."""
        for row, share in current.shares.items():
            if share is None or share.received is not None or not share.ticket.done:
                continue
            current.shares[row] = None
            if self._desk.settle(share):
                current.shares[row] = share

    def _hurry(self, current: Round) -> None:
        """Enough shares are in: the others end at their next step."""
        waiting = current.waiting()
        if self._enough is not None and len(current.shares) - len(waiting) >= self._enough:
            for share in waiting:
                self._desk.ring(share)

    def _ask_missing(self, one: Round) -> None:
        for row, share in one.shares.items():
            worker = self._worker_for(row) if share is None else None
            if worker is not None:
                one.shares[row] = self._desk.ask(worker, randomly=one.randomly)

    def _worker_for(self, row: int) -> int | None:
        """Who makes this row now: its own worker, another one if that is gone, nobody while it is coming back."""
        fleet = self._desk.fleet
        up = fleet.up
        if row in up:
            return row
        if fleet.standings()[row].phase != "gone" or not up:
            return None
        self._stand_in += 1
        return sorted(up)[self._stand_in % len(up)]


class FirstOf:
    """Gathers fragments as they are ready.

    Args:
        desk: asks the workers.
        pace: how far ahead, and how old.
    """

    def __init__(self, desk: Desk, pace: Pace) -> None:
        self._desk, self._pace = desk, pace
        self._ready: deque[Sent] = deque()
        self._served: dict[int, int] = {}
        self._turn = 0

    def begin(self) -> None:
        """The user draws: every worker that may be asked is asked."""
        self._fill(max(self._pace.prefetch, 1))

    def ahead(self) -> None:
        """A fragment is about to be handed out: its worker and others that may be asked are asked."""
        self._fill(self._pace.prefetch)

    def next(self, interrupted: Interrupted) -> list[Sent] | None:
        """The next fragment; `None` if there is nothing to wait for.

        Raises:
            Closed: interrupted.
            FleetFailed: too few workers are left, and nothing is ready.
            Exception: what user code raised.
        """
        desk = self._desk
        while True:
            seen = desk.fleet.changes
            with desk.lock:
                self._settle()
                chosen = self._choose()
                if chosen is not None:
                    return [chosen]
                self.begin()
                tickets = [sent.ticket for sent in desk.out if not sent.void and sent.received is None]
                if not tickets and not desk.may_ask:
                    return None
            wait_for(desk, tickets, interrupted, seen)

    def again(self, shares: list[Sent], lost: Sent) -> None:  # noqa: ARG002  it was alone
        """A fragment was lost by its store; its worker is asked again as any other."""
        self._pace.random_batches += lost.randomly

    def forget(self, workers: list[int] | None = None) -> None:
        """What these workers, or all, were asked for is not wanted any more."""
        self._desk.void(workers)
        self._ready = deque(sent for sent in self._ready if not sent.void)

    def _fill(self, most: int) -> None:
        for worker in self._desk.fleet.up:
            while self._desk.out_of(worker) < most and self._desk.may_ask:
                self._desk.ask(worker, randomly=self._pace.next_is_random())

    def _settle(self) -> None:
        """Book what is in, in the order in which it was asked for."""
        for sent in list(self._desk.out):
            if sent.void or sent.received is not None or not sent.ticket.done:
                continue
            try:
                there = self._desk.settle(sent)
            except Exception:
                self._pace.random_batches += sent.randomly
                raise
            if there:
                self._ready.append(sent)
            else:
                self._pace.random_batches += sent.randomly

    def _choose(self) -> Sent | None:
        """Of what is ready, the fragment whose worker was served longest ago; what is too old is asked for anew."""
        while self._ready:
            chosen = min(self._ready, key=lambda sent: self._served.get(sent.worker, -1))
            self._ready.remove(chosen)
            if not self._is_stale(chosen):
                return self._serve(chosen)
            if chosen.insisted:
                self._desk.counters.overdue()
                return self._serve(chosen)
            self._drop(chosen)
        return None

    def _serve(self, chosen: Sent) -> Sent:
        self._turn += 1
        self._served[chosen.worker] = self._turn
        return chosen

    def _is_stale(self, sent: Sent) -> bool:
        most, version = self._pace.max_staleness, sent.head.version
        if most is None or sent.randomly or version < 0:
            return False
        return self._desk.channel.version_for(sent.worker) - version > most

    def _drop(self, sent: Sent) -> None:
        desk = self._desk
        desk.counters.drop(sent.head.frames)
        desk.close(sent)
        if sent.worker in desk.fleet.up:
            desk.ask(sent.worker, insisted=True)


def wait_for(desk: Desk, tickets: Sequence[Ticket], interrupted: Interrupted, seen: int) -> None:
    """Wait until one of the tickets is done, or a worker has come or gone since `seen`.

    Raises:
        Closed: interrupted.
        FleetFailed: too few workers are left.
    """
    with desk.lock:
        desk.sweep()
    desk.fleet.wait(tickets, interrupted=interrupted, seen=seen)
    if interrupted():
        raise Closed("this collector was shut down during a draw; build another one")
