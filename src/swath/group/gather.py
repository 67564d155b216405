"""Who is asked next, and whose reply comes next, in two ways.

    InOrder   one request per row and round; a round is complete when every row is in, whatever the order of arrival
    AsReady   one reply after another, as they are ready; who was served longest ago comes first

Both ask again for what was lost: the worker's next life, or another worker when it is gone for good. What has to
outlast an exception is kept in them, so that the next call goes on where the last one was left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from swath.errors import Closed
from swath.group.group import Request, WorkerGroup
from swath.workers.fleet import Interrupted


class Plan(ABC):
    """What workers are to be asked for, as a service knows it. All calls come under the group's lock."""

    @property
    @abstractmethod
    def wants_more(self) -> bool:
        """Whether more is wanted than is out."""

    @abstractmethod
    def next_round(self) -> Mapping[int, Any]:
        """What each row of a further round is asked for."""

    @abstractmethod
    def next_for(self, worker: int) -> Any:
        """What a worker is asked for next."""

    @abstractmethod
    def give_back(self, asked: Any) -> None:
        """Nothing came of what was asked of a worker, or of one row of a round; it is still wanted."""

    @abstractmethod
    def ask(self, worker: int, asked: Any, *, insisted: bool = False) -> Request:
        """Ask a worker that is up."""

    def before_asking(self, workers: Collection[int]) -> None:  # noqa: B027  most have nothing to do
        """These workers are about to be asked."""

    def hurry(self, request: Request) -> None:  # noqa: B027  most cannot
        """Let a worker end early what it was asked for."""

    def is_stale(self, request: Request) -> bool:  # noqa: ARG002
        """Whether a reply is too old to be delivered."""
        return False

    def stale(self, request: Request, *, delivered: bool) -> None:  # noqa: B027  nothing is stale
        """A reply that is too old is delivered all the same, or dropped."""


class Gather(ABC):
    """One of the two ways.

    Args:
        group: the workers.
        plan: what they are asked for.
        ahead: how many rounds, or requests per worker, are made before what came last is handed out.
    """

    def __init__(self, group: WorkerGroup, plan: Plan, ahead: int) -> None:
        self._group, self._plan, self._ahead = group, plan, ahead

    def next(self, interrupted: Interrupted) -> list[Request] | None:
        """What comes next, to be closed by who gets it; `None` if there is nothing to wait for.

        Raises:
            Closed: interrupted.
            FleetFailed: too few workers are left, and nothing is ready.
            Exception: what user code raised; other replies stay for the next call.
        """
        group = self._group
        while True:
            seen = group.news
            with group.lock:
                taken = self._take()
                if taken is not None:
                    for request in taken:
                        request.taken = True
                    return taken
                group.require_enough()
                waiting = self._ask_now()
                if waiting is None:
                    return None
            group.wait(waiting, interrupted, seen)
            if interrupted():
                raise Closed("this collector was shut down during a draw; build another one")

    def done(self) -> None:  # noqa: B027  there may be nothing to do
        """What came last was made use of."""

    @abstractmethod
    def ask_ahead(self) -> None:
        """What came last is about to be handed out: ask for what comes after it."""

    @abstractmethod
    def put_back(self, lost: Collection[Request]) -> None:
        """Of what came last these are lost; the others come again."""

    @abstractmethod
    def forget(self, workers: Collection[int] | None = None) -> None:
        """What these workers, or all, were asked for is not wanted any more; it is asked for again."""

    @abstractmethod
    def _take(self) -> list[Request] | None:
        """What comes next, if it is there."""

    @abstractmethod
    def _ask_now(self) -> list[Request] | None:
        """Ask for what is missing; what is waited for, `None` if that is nothing and no more is wanted."""


@dataclass
class Round:
    """A round in the making.

    Attributes:
        asked: what each row is asked for.
        requests: what is out, by row.
    """

    asked: Mapping[int, Any]
    requests: dict[int, Request] = field(default_factory=dict)

    def there(self) -> list[Request]:
        """Replies that are in, in order of rows."""
        return [one for row in self.asked if (one := self.requests.get(row)) is not None and one.reply is not None]

    def leave_out_closed(self) -> None:
        """What is lost or not wanted any more is to be asked for again."""
        self.requests = {row: one for row, one in self.requests.items() if not (one.closed or one.dropped)}


class InOrder(Gather):
    """Rounds, in order; a worker's replies are delivered in the order in which it makes them.

    Args:
        group: the workers.
        plan: what they are asked for.
        ahead: how many further rounds are asked for before one is handed out.
        enough: with so many replies the others of a round end early; `None` waits for all.
    """

    def __init__(self, group: WorkerGroup, plan: Plan, ahead: int, enough: int | None = None) -> None:
        super().__init__(group, plan, ahead)
        self._enough = enough
        self._rounds: deque[Round] = deque()
        self._stand_ins = 0

    def ask_ahead(self) -> None:
        """Ask for further rounds."""
        while len(self._rounds) <= self._ahead and self._open_round():
            self._ask_missing()

    def done(self) -> None:
        """The round that came last is over."""
        self._rounds.popleft()

    def put_back(self, lost: Collection[Request]) -> None:  # noqa: ARG002  they are closed
        """The round that came last comes again when what is lost was asked for anew."""
        for request in self._rounds[0].there() if self._rounds else ():
            request.taken = False

    def forget(self, workers: Collection[int] | None = None) -> None:
        """Rounds of which nothing is out any more are given back."""
        self._group.drop(workers)
        for one in self._rounds:
            one.leave_out_closed()
        while self._rounds and not self._rounds[-1].requests:
            self._plan.give_back(next(iter(self._rounds.pop().asked.values())))

    def _take(self) -> list[Request] | None:
        """The first round, if it is whole; an exception leaves what else is answered for the next call."""
        ours = {id(request) for one in self._rounds for request in one.requests.values()}
        for request in self._group.wanted():
            if id(request) not in ours:  # Ctrl-C came while it was asked for
                self._group.cancel(request)
        if not self._rounds:
            return None
        first = self._rounds[0]
        answered = [request for request in first.requests.values() if request.answered]
        answered += [request for one in self._rounds for request in one.requests.values() if request.lost]
        if answered:
            self._group.sweep()  # of each worker what is not wanted first
        for request in answered:
            if not request.closed:
                self._group.settle(request)
        for one in self._rounds:
            one.leave_out_closed()
        there = first.there()
        return there if len(there) == len(first.asked) else None

    def _ask_now(self) -> list[Request] | None:
        if not self._rounds and not self._open_round():
            return None
        self._ask_missing()
        first = self._rounds[0]
        waiting = [request for request in first.requests.values() if request.reply is None]
        if self._enough is not None and len(first.there()) >= self._enough:
            for request in waiting:
                self._plan.hurry(request)
        return waiting

    def _open_round(self) -> bool:
        """Whether there is another round to be asked for."""
        if (self._rounds and not self._rounds[-1].requests) or not self._plan.wants_more:
            return False
        self._rounds.append(Round(self._plan.next_round()))
        return True

    def _ask_missing(self) -> None:
        """Ask for what is missing of all rounds, with the same weights.

        Who is asked for an earlier round makes that after what it was asked for with later ones: these make way, and
        are asked for again.
        """
        missing, again = [], set[int]()
        for one in self._rounds:
            for row, request in list(one.requests.items()):
                if request.worker in again:
                    self._group.cancel(one.requests.pop(row))
            for row in one.asked:
                worker = None if row in one.requests else self._worker_for(row)
                if worker is not None:
                    missing.append((one, row, worker))
            again.update(worker for _, _, worker in missing)
        self._plan.before_asking([worker for _, _, worker in missing])
        with self._group.channel.steady():
            for one, row, worker in missing:
                one.requests[row] = self._plan.ask(worker, one.asked[row])

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

    def __init__(self, group: WorkerGroup, plan: Plan, ahead: int) -> None:
        super().__init__(group, plan, ahead)
        self._insisting: set[int] = set()
        self._served: dict[int, int] = {}
        self._turn = 0

    def ask_ahead(self) -> None:
        """Ask the worker of the reply, and others that may be asked."""
        self._fill(self._ahead)

    def put_back(self, lost: Collection[Request]) -> None:
        """Their workers are asked again as any other."""
        for request in lost:
            self._missed(request)

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
                    self._missed(request)
        while ready := [request for request in group.wanted() if request.reply is not None]:
            chosen = min(ready, key=lambda request: self._served.get(request.worker, -1))
            stale = self._plan.is_stale(chosen)
            if stale:
                self._plan.stale(chosen, delivered=chosen.insisted)
            if not stale or chosen.insisted:
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
        return waiting if waiting or self._plan.wants_more else None

    def _fill(self, most: int) -> None:
        """Let so much of every worker be out, in turn."""
        out = self._group.out_by_worker()
        for number in range(1, most + 1):
            for worker in self._group.fleet.up:
                if out[worker] < number:
                    self._ask(worker)
                    out[worker] += 1

    def _ask(self, worker: int) -> None:
        if self._plan.wants_more:
            self._plan.before_asking([worker])
            self._plan.ask(worker, self._plan.next_for(worker), insisted=worker in self._insisting)
            self._insisting.discard(worker)

    def _missed(self, request: Request) -> None:
        """Nothing came of it: what it was asked with is for the next."""
        self._plan.give_back(request.asked)
        if request.insisted:
            self._insisting.add(request.worker)
