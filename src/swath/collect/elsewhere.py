"""Fragments that never come here: their workers keep them until they are told to write them, and say how many rows.

    gather ─▶ fragments, in their turn ─▶ told ─▶ Written ─▶ counted ─▶ Drawn
                 └─ dropped, forgotten: their workers learn it with the next request, and let go of them

So what is written, in which order and when, is what this process would have written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import inf
from typing import NamedTuple

from swath.collect.asks import Kept, Written
from swath.collect.books import Sent
from swath.collect.counters import Counters
from swath.collect.deliver import Drawn
from swath.collect.desk import Desk
from swath.collect.gather import Gather, Interrupted
from swath.collect.whole import Polls
from swath.errors import WorkerLost
from swath.options import Trajectories
from swath.workers.outcome import Error, thawed
from swath.workers.tickets import Name, Ticket

_NOTHING = Written(0)


class _Told(NamedTuple):
    """A worker was told to write, and has not answered: a fragment, or further episodes; and what it was to keep."""

    ticket: Ticket
    share: Sent | None
    kept: Kept


class WrittenElsewhere:
    """Has workers write for themselves. One thread draws; others may forget.

    Args:
        desk: of the collection.
        gather: whose fragment comes next.
        counters: of the collection.
        wanted: how batches are made of episodes.
    """

    def __init__(self, desk: Desk, gather: Gather, counters: Counters, wanted: Trajectories) -> None:
        self._desk, self._gather, self._counters = desk, gather, counters
        self._least = None if wanted.per_batch is None else wanted.least(writing=True)
        self._polls = Polls()
        self._given: deque[Sent] = deque()
        self._told: _Told | None = None
        self._waiting: dict[Name, Written] = {}
        self._since: dict[int, int] = {}

    @property
    def in_hand(self) -> Collection[Sent]:
        """Fragments that a draw was given, and whose workers are yet to write them."""
        return self._given

    def kept(self, worker: int) -> Kept:
        """What this worker is to keep."""
        numbers = (sent.number for sent in self._desk.out if sent.worker == worker and not sent.void)
        return Kept(tuple(numbers), self._since.get(worker, 0))

    def draw(self, interrupted: Interrupted) -> Drawn:
        """Let the next batch be written, or the next fragment, or the next episodes.

        Raises:
            Closed: interrupted.
            FleetFailed: too few workers are left.
            Exception: what a function of the user's or the buffer raised in a worker; what it was to write is lost.
        """
        while True:
            if self._told is not None:
                if self._settle(self._told):
                    self._counters.deliver(0)
                    return Drawn(None)
            elif not self._tell():
                shares = self._gather.next(interrupted)
                if shares is None:
                    return Drawn(None, ended=True)
                self._take(shares)

    def forget(self, workers: Collection[int] | None) -> None:
        """Of these workers, or of all, nothing that waits for the end of its episode is wanted any more; it is counted.

        Fragments that are to be written as they are belong to a batch, and are given back when their turn comes.
        """
        if self._least is not None:
            self._discard_given(workers)
        for name in [name for name in self._waiting if workers is None or name.worker in workers]:
            self._discard_waiting(name)
        for worker in self._desk.frames if workers is None else workers:
            self._since[worker] = self._desk.last_number

    def end(self) -> None:
        """The workers are gone: count what they have said last."""
        with self._desk.lock:
            told, self._told = self._told, None
            if told is not None and told.ticket.done and not isinstance(told.ticket.outcome, Error):
                self._book(told)
            self._discard_given(None)

    def _take(self, shares: Collection[Sent]) -> None:
        """A batch in hand: fragments of one worker in the order in which it made them, if they are put together."""
        left = [share for share in shares if not share.written]
        self._given.extend(left if self._least is None else sorted(left, key=lambda share: share.number))

    def _tell(self) -> bool:
        """Tell the next worker to write; false if there is nothing that it could write."""
        with self._desk.lock:
            self._bury()
            for name, written in self._waiting.items():
                if self._least is not None and written.complete >= self._least and self._call(name, None):
                    return True
            while self._given:
                if self._call(self._given[0].ticket.name, self._given[0]):
                    return True
        return False

    def _call(self, name: Name, share: Sent | None) -> bool:
        """Tell this life of a worker; false if it is over, or what it made is not wanted any more."""
        fleet = self._desk.fleet
        handle = fleet.up.get(name.worker)
        if handle is None or handle.name != name:
            self._lose(share)
            return False
        if share is not None and share.void:
            self._desk.discard(share)
            self._miss(share)
            return False
        kept = self.kept(name.worker)
        number = None if share is None else share.number
        self._told = _Told(fleet.call(handle, "write", number, kept, late=True), share, kept)
        if len(self._given) == 1 and share is not None:
            self._gather.ahead()  # what is asked for now is begun when this is written
        return True

    def _settle(self, told: _Told) -> bool:
        """Wait until the worker has written, and count; whether that makes up a batch.

        Raises:
            Closed: shut down meanwhile.
            Exception: what was raised in the worker.
        """
        self._desk.fleet.answers([told.ticket], inf)
        with self._desk.lock:
            self._told, outcome = None, told.ticket.outcome
            if isinstance(outcome, Error):
                self._lose(told.share)
                if isinstance(outcome.exception, WorkerLost):
                    return False
                raise outcome.exception
            written = self._book(told)
            if written.error:
                self._miss(told.share)
                raise thawed(written.error)
            if told.share is not None:
                self._given.popleft()
            return not self._given if self._least is None else written.frames > 0

    def _book(self, told: _Told) -> Written:
        """Count what a worker has written, and what it has not and never will."""
        name, share = told.ticket.name, told.share
        written: Written = told.ticket.value
        made = 0 if share is None else share.head.frames
        before = self._waiting.pop(name, _NOTHING)
        wanted = told.kept.since == self._since.get(name.worker, 0)
        if wanted and written.waiting:
            self._waiting[name] = written
        self._counters.discard(before.waiting + made - written.frames - (written.waiting if wanted else 0))
        self._counters.add(written.frames, written.episodes)
        if share is not None:
            share.written = not written.error
            self._desk.close(share)
            if self._least is not None:
                self._polls.note(made, finished=written.frames > 0 or written.complete > before.complete)
        return written

    def _lose(self, share: Sent | None) -> None:
        """A worker has died with a fragment that it had made."""
        if share is not None:
            self._desk.known.fragments_lost += 1
            self._desk.close(share)
            self._miss(share)

    def _miss(self, share: Sent | None) -> None:
        """A fragment that is in hand will not be written; a batch that lacks it is made whole first."""
        if share is None:
            return
        if self._least is None:
            self._given.clear()
            self._gather.again([share])
        elif self._given and self._given[0] is share:
            self._given.popleft()

    def _bury(self) -> None:
        """What waited in lives that are over is lost."""
        up = self._desk.fleet.up
        for name in [name for name in self._waiting if (handle := up.get(name.worker)) is None or handle.name != name]:
            self._discard_waiting(name)

    def _discard_given(self, workers: Collection[int] | None) -> None:
        """Nobody will be told to write what is in hand of these workers, or of all."""
        being_written = None if self._told is None else self._told.share
        for share in list(self._given):
            if share is not being_written and (workers is None or share.worker in workers):
                self._given.remove(share)
                self._desk.discard(share)

    def _discard_waiting(self, name: Name) -> None:
        self._counters.discard(self._waiting.pop(name).waiting)
