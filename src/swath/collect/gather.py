"""Who is asked next, and whose fragment comes next, in two ways.

    AllOf    one share per row; complete when every row is in, whatever the order of arrival
    FirstOf  one fragment after another, as they are ready

Both ask through a `Desk` and wait on its fleet. Lost shares are asked for again: of the worker's next life, or of
another worker when it is gone for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

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


@dataclass
class Round:
    """A synchronous batch in the making.

    Attributes:
        frames: of each share, by row.
        randomly: with random actions.
        shares: by row; `None` where it has to be asked for (again).
    """

    frames: dict[int, int]
    randomly: bool
    shares: dict[int, Sent | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shares = dict.fromkeys(self.frames)

    @property
    def complete(self) -> bool:
        """Whether every share is in."""
        return len(self.there()) == len(self.shares)

    @property
    def asked(self) -> bool:
        """Whether any share was asked for."""
        return any(share is not None for share in self.shares.values())

    def there(self) -> list[Sent]:
        """Shares that are in, in order of rows."""
        return [share for share in self.shares.values() if share is not None and share.received is not None]

    def waiting(self) -> list[Sent]:
        """Shares that were asked for and are not in."""
        return [share for share in self.shares.values() if share is not None and share.received is None]

    def forget(self, gone: Callable[[Sent], bool]) -> None:
        """These shares are to be asked for again."""
        self.shares = {row: None if share is None or gone(share) else share for row, share in self.shares.items()}


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
        self._given: Round | None = None
        self._stand_in = 0

    def ahead(self) -> None:
        """A batch is about to be handed out: ask for those that come after it."""
        while len(self._rounds) < self._pace.prefetch and self._open_round():
            self._ask_missing()

    def next(self, interrupted: Interrupted) -> list[Sent] | None:
        """The shares of the next batch, in order of rows; `None` if there is nothing to wait for.

        Raises:
            Closed: interrupted.
            FleetFailed: too few workers are left.
            Exception: what user code raised; the other shares are kept.
        """
        desk = self._desk
        while True:
            seen = desk.news
            with desk.lock:
                if not self._rounds and not self._open_round():
                    return None
                current = self._rounds[0]
                self._settle(current)
                if current.complete:
                    return self._give()
                desk.require_enough()
                self._ask_missing()
                self._hurry(current)
                tickets = [share.ticket for share in current.waiting()]
            wait_for(desk, tickets, interrupted, seen)

    def clear_up(self) -> None:
        """What is out and belongs to no batch is not wanted."""
        ours = {id(share) for one in self._rounds for share in one.shares.values()}
        for sent in self._desk.wanted():
            if id(sent) not in ours:
                self._desk.cancel(sent)

    def again(self, lost: Collection[Sent]) -> None:
        """Of the shares that were given last, these are lost: the batch is put back without them."""
        current = self._given
        assert current is not None
        current.forget(lambda share: share in lost)
        for share in current.there():
            share.taken = False
        self._rounds.appendleft(current)
        self._drop_unasked()

    def forget(self, workers: Collection[int] | None = None) -> None:
        """Shares of these workers, or all, are not wanted any more: they are asked for again with the next draw."""
        self._desk.void(workers)
        for one in self._rounds:
            one.forget(lambda share: share.void)
        self._drop_unasked()

    def _drop_unasked(self) -> None:
        """Batches of which nothing is asked for are begun anew."""
        while self._rounds and not self._rounds[-1].asked:
            self._pace.random_batches += self._rounds.pop().randomly

    def _give(self) -> list[Sent]:
        self._given = self._rounds.popleft()
        shares = self._given.there()
        for share in shares:
            share.taken = True
        return shares

    def _open_round(self) -> bool:
        """Whether there is another batch to be asked for."""
        if (self._rounds and not self._rounds[-1].asked) or not self._desk.may_ask:
            return False
        frames = self._desk.frames
        self._rounds.append(Round({row: frames[row] for row in self.rows}, self._pace.next_is_random()))
        return True

    def _settle(self, current: Round) -> None:
        """Book what is in; an exception of user code leaves at once, what is not looked at yet is for the next draw."""
        done = [(row, share) for row, share in current.shares.items() if share is not None and share.is_done]
        if done:
            self._desk.sweep()  # of each worker what is not wanted first: its gaps are known before what comes after
        for row, share in done:
            try:
                there = self._desk.settle(share)
            except Exception:
                current.shares[row] = None
                raise
            if not there:
                current.shares[row] = None

    def _hurry(self, current: Round) -> None:
        """Enough shares are in: the others end at their next step."""
        if self._enough is not None and len(current.there()) >= self._enough:
            for share in current.waiting():
                self._desk.ring(share)

    def _ask_missing(self) -> None:
        """Ask for what is missing; a batch is asked for with the same weights all over."""
        asked = []
        for one in self._rounds:
            one.forget(lambda share: share.is_lost and not self._desk.settle(share))
        for place, one in enumerate(self._rounds):
            for row in [row for row, share in one.shares.items() if share is None]:
                worker = self._worker_for(row)
                if worker is not None and not self._bring_forward(worker, place, row):
                    asked.append((one, row, worker))
        self._desk.renew(worker for _, _, worker in asked)
        with self._desk.channel.steady():
            for one, row, worker in asked:
                one.shares[row] = self._desk.ask(worker, one.frames[row], randomly=one.randomly)

    def _bring_forward(self, worker: int, place: int, row: int) -> bool:
        """Whether a share that the worker was asked for with a later batch fills the gap.

        What it would be asked for now it would make after that one, and the two would be delivered the wrong way round.
        Shares of another kind make way, and are asked for again.
        """
        to = self._rounds[place]
        for one in islice(self._rounds, place + 1, None):
            for other, share in one.shares.items():
                if share is not None and share.worker == worker:
                    one.shares[other] = None
                    if (share.frames, share.randomly) == (to.frames[row], to.randomly):
                        to.shares[row] = share
                        return True
                    self._desk.cancel(share)
        return False

    def _worker_for(self, row: int) -> int | None:
        """Who makes this row now: its own worker, another one if that is gone, nobody while it is coming back."""
        fleet = self._desk.fleet
        up = fleet.up
        if row in up:
            return row
        if not up or not self._desk.is_gone(row):
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
        self._insisting: set[int] = set()
        self._served: dict[int, int] = {}
        self._turn = 0

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
            seen = desk.news
            with desk.lock:
                self._settle()
                chosen = self._choose()
                if chosen is not None:
                    return [chosen]
                desk.require_enough()
                self._fill(max(self._pace.prefetch, 1))
                tickets = [sent.ticket for sent in desk.wanted() if sent.received is None]
                if not tickets and not desk.may_ask:
                    return None
            wait_for(desk, tickets, interrupted, seen)

    def clear_up(self) -> None:
        """Whatever is out is wanted, whoever has asked for it."""

    def again(self, lost: Collection[Sent]) -> None:
        """The fragment that was given last is lost: its worker is asked again as any other."""
        for sent in lost:
            self._miss(sent)

    def forget(self, workers: Collection[int] | None = None) -> None:
        """What these workers, or all, were asked for is not wanted any more."""
        for sent in self._desk.void(workers):
            if not sent.taken:  # else it is delivered, or given back by `again`
                self._miss(sent)

    def _fill(self, most: int) -> None:
        """Ask every worker for so many fragments, in turn."""
        out = self._desk.out_by_worker()
        for number in range(1, most + 1):
            for worker in self._desk.fleet.up:
                if out[worker] < number and self._desk.may_ask:
                    self._ask(worker)
                    out[worker] += 1

    def _ask(self, worker: int) -> None:
        insisted = worker in self._insisting
        self._desk.renew([worker])
        self._desk.ask(worker, self._desk.frames[worker], randomly=self._pace.next_is_random(), insisted=insisted)
        self._insisting.discard(worker)

    def _settle(self) -> None:
        """Book what is in, in the order in which it was asked for."""
        done = [sent for sent in self._desk.wanted() if sent.is_done]
        if done:
            self._desk.sweep()
        for sent in done:
            try:
                there = self._desk.settle(sent)
            except Exception:
                self._miss(sent)
                raise
            if not there:
                self._miss(sent)

    def _miss(self, sent: Sent) -> None:
        """Nothing came of it: what it was asked for with is for the next."""
        self._pace.random_batches += sent.randomly
        if sent.insisted:
            self._insisting.add(sent.worker)

    def _choose(self) -> Sent | None:
        """Of what is ready, the fragment whose worker was served longest ago; what is too old is asked for anew."""
        while ready := [sent for sent in self._desk.wanted() if sent.received is not None]:
            chosen = min(ready, key=lambda sent: self._served.get(sent.worker, -1))
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
        chosen.taken = True
        return chosen

    def _is_stale(self, sent: Sent) -> bool:
        most, version = self._pace.max_staleness, sent.head.version
        if most is None or sent.randomly or version < 0:
            return False
        return self._desk.channel.version_for(sent.worker) - version > most

    def _drop(self, sent: Sent) -> None:
        self._desk.drop(sent)
        self._insisting.add(sent.worker)
        if sent.worker in self._desk.fleet.up and self._desk.may_ask:
            self._ask(sent.worker)


Gather: TypeAlias = AllOf | FirstOf
"""One of the two ways."""
