"""Who is asked next, and whose reply comes next, in two ways.

    InOrder   one request per row and round; a round is complete when every row is in, whatever the order of arrival
    AsReady   one reply after another, as they are ready; who was served longest ago comes first

Both ask again for what was lost: the worker's next life, or another worker when it is gone for good. What has to
outlast an exception is kept in them, so that the next call goes on where the last one was left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from swath.collectors.fragments import Fragments
from swath.collectors.messages import FragmentRequest
from swath.errors import Closed
from swath.group.group import Request
from swath.workers.tickets import Interrupted

T = TypeVar("T")


class Gather(ABC):
    """One of the two ways.

    Args:
        group: the workers, and what they are asked for.
        ahead: how many rounds, or requests per worker, are made before what came last is handed out.
    """

    def __init__(self, group: Fragments, ahead: int) -> None:
        self._group, self._ahead = group, ahead

    def next(self, interrupted: Interrupted, use: Callable[[list[Request]], T | None]) -> T | None:
        """What is made of what comes next, which the user closes; `None` if there is nothing to wait for.

        Args:
            interrupted: true ends the wait.
            use: called under the lock of the group. Where it gives `None` it has closed requests that are lost: they
                are asked for again.

        Raises:
            Closed: interrupted.
            FleetFailed: too few workers are left, and nothing is ready.
            Exception: what user code raised; other replies stay for the next call.
        """
        group = self._group
        while True:
            seen, held = group.news, group.held
            with group.lock:
                taken = self._take()
                if taken is not None:
                    for request in taken:
                        request.taken = True
                    if (made := use(taken)) is not None:
                        return made
                    for request in taken:
                        request.taken = False
                    self.put_back([request for request in taken if request.closed])
                    continue
                group.require_enough()
                waiting = self._ask_now()
                if waiting is None:
                    return None
            group.wait(waiting, lambda: interrupted() or group.held != held, seen)  # noqa: B023  within this round
            if interrupted():
                raise Closed("this collector was shut down during a draw; build another one")

    def done(self) -> None:  # noqa: B027  there may be nothing to do
        """What came last has been used."""

    def put_back(self, lost: Collection[Request]) -> None:  # noqa: B027  likewise
        """These are lost, and closed."""

    @abstractmethod
    def _take(self) -> list[Request] | None:
        """What comes next, if it is there."""

    @abstractmethod
    def _ask_now(self) -> list[Request] | None:
        """Ask for what is missing; what is waited for, `None` if that is nothing and no more is wanted."""


@dataclass
class Row:
    """A row of a round: what it is asked for, and the last request for that."""

    asked: FragmentRequest
    request: Request | None = None

    @property
    def out(self) -> Request | None:
        """The request, unless it is lost or not wanted any more: what it was is to be asked for again then."""
        request = self.request
        return None if request is None or request.closed or request.dropped else request


def _out(one: Mapping[int, Row]) -> list[Request]:
    """What is out of a round, in order of rows."""
    return [request for row in one.values() if (request := row.out) is not None]


class InOrder(Gather):
    """Rounds, in order; a worker's replies are delivered in the order in which it makes them.

    Args:
        group: the workers, and what they are asked for.
        ahead: how many further rounds are asked for before one is handed out.
        enough: with so many replies the others of a round end early; `None` waits for all.
    """

    def __init__(self, group: Fragments, ahead: int, enough: int | None = None) -> None:
        super().__init__(group, ahead)
        self._enough = enough
        self._rounds: deque[dict[int, Row]] = deque()
        self._stand_ins = 0

    def ask_ahead(self) -> None:
        """Ask for further rounds."""
        while len(self._rounds) <= self._ahead and self._open_round():
            self._ask_missing()

    def done(self) -> None:
        """The round that came last is over."""
        self._rounds.popleft()

    def forget(self, workers: Collection[int] | None = None) -> None:
        """Rounds of which nothing is out any more are given back."""
        self._group.drop(workers)
        while self._rounds and not _out(self._rounds[-1]):
            self._group.give_back(next(iter(self._rounds.pop().values())).asked)

    def _take(self) -> list[Request] | None:
        """The first round, if it is whole; an exception leaves what else is answered for the next call."""
        group, out = self._group, [request for one in self._rounds for request in _out(one)]
        ours = set(out)
        for request in group.wanted():
            if request not in ours:  # Ctrl-C came while it was asked for
                group.cancel(request)
        if not self._rounds:
            return None
        first = self._rounds[0]
        answered = [request for request in _out(first) if request.answered]
        answered += [request for request in out if request.lost]
        if answered:
            group.sweep()  # of each worker what is not wanted first
        for request in answered:
            if not request.closed:
                group.settle(request)
        there = [request for request in _out(first) if request.reply is not None]
        return there if len(there) == len(first) else None

    def _ask_now(self) -> list[Request] | None:
        if not self._rounds and not self._open_round():
            return None
        self._ask_missing()
        out = _out(self._rounds[0])
        waiting = [request for request in out if request.reply is None]
        if self._enough is not None and len(out) - len(waiting) >= self._enough:
            for request in waiting:
                self._group.hurry(request)
        return waiting

    def _open_round(self) -> bool:
        """Whether there is another round to be asked for."""
        if (self._rounds and not _out(self._rounds[-1])) or not self._group.wants_more:
            return False
        self._rounds.append({row: Row(asked) for row, asked in self._group.next_round().items()})
        return True

    def _ask_missing(self) -> None:
        """Ask for what is missing of all rounds, with the same weights.

        Who is asked for an earlier round makes that after what it was asked for with later ones: these make way, and
        are asked for again.
        """
        group, missing, again = self._group, list[tuple[Row, int]](), set[int]()
        for one in self._rounds:
            for row in one.values():
                if (request := row.out) is not None and request.worker in again:
                    group.cancel(request)
            for number, row in one.items():
                if row.out is None and (worker := self._worker_for(number)) is not None:
                    missing.append((row, worker))
            again.update(worker for _, worker in missing)
        group.before_asking([worker for _, worker in missing])
        with group.channel.steady():
            for row, worker in missing:
                row.request = group.ask(worker, row.asked)

    def _worker_for(self, row: int) -> int | None:
        """Who is asked for this row: its own worker, another if that is gone, nobody while it is coming back."""
        up = self._group.fleet.up
        if row in up:
            return row
        if not up or not self._group.is_gone(row):
            return None
        self._stand_ins += 1
        return sorted(up)[self._stand_ins % len(up)]


class AsReady(Gather):
    """One reply after another, as they are ready.

    A reply that is too old is dropped, and its worker asked anew; what it is asked for then is delivered whatever its
    age, so that no draw lasts for ever.
    """

    def __init__(self, group: Fragments, ahead: int) -> None:
        super().__init__(group, ahead)
        self._insisting: set[int] = set()
        self._served: dict[int, int] = {}
        self._turn = 0

    def ask_ahead(self) -> None:
        """Ask the worker of the reply, and others that may be asked."""
        self._fill(self._ahead)

    def put_back(self, lost: Collection[Request]) -> None:
        """Their workers are asked again as any other."""
        for request in lost:
            self._group.give_back(request.asked)
            if request.insisted:
                self._insisting.add(request.worker)

    def forget(self, workers: Collection[int] | None = None) -> None:
        """What is being delivered is delivered, or put back."""
        self.put_back([request for request in self._group.drop(workers) if not request.taken])

    def _take(self) -> list[Request] | None:
        group = self._group
        answered = [request for request in group.wanted() if request.answered]
        if answered:
            group.sweep()
        for request in answered:
            there = False
            try:
                there = group.settle(request)
            finally:
                if not there:
                    self.put_back([request])
        while ready := [request for request in group.wanted() if request.reply is not None]:
            chosen = min(ready, key=lambda request: self._served.get(request.worker, -1))
            if not group.is_stale(chosen):
                self._turn += 1
                self._served[chosen.worker] = self._turn
                return [chosen]
            group.close(chosen)
            self._insisting.add(chosen.worker)
            if chosen.worker in group.fleet.up:
                self._ask(chosen.worker)
        return None

    def _ask_now(self) -> list[Request] | None:
        self._fill(max(self._ahead, 1))
        waiting = [request for request in self._group.wanted() if request.reply is None]
        return waiting if waiting or self._group.wants_more else None

    def _fill(self, most: int) -> None:
        """Let so much of every worker be out, in turn."""
        out = self._group.out_by_worker()
        for number in range(1, most + 1):
            for worker in self._group.fleet.up:
                if out[worker] < number:
                    self._ask(worker)
                    out[worker] += 1

    def _ask(self, worker: int) -> None:
        if self._group.wants_more:
            self._group.before_asking([worker])
            request = self._group.ask(worker, self._group.next_for(worker))
            request.insisted = worker in self._insisting
            self._insisting.discard(worker)
