"""Synchronous batches: one share per row, complete when every row is in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import islice

from swath.collect.books import Sent
from swath.collect.desk import Desk
from swath.collect.gather import Interrupted, Pace, wait_for


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
