"""The fragments that workers are asked for: who is asked next, whose reply comes next, and what becomes of it.

    Fragments asked for until the total is reached, with newer weights when these are due; what comes, is lost or too
              old is counted. They are gathered in two ways:
    InOrder   one request per row and round; a round is complete when every row is in, whatever the order of arrival
    AsReady   one reply after another, as they are ready; who was served longest ago comes first

Both ask again for what was lost: the worker's next life, or another worker when it is gone for good. What has to
outlast an exception is kept in them, so that the next call goes on where the last one was left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import numpy as np

from swath.collectors.messages import Broken, FragmentRequest, Head, Tally
from swath.collectors.options import Automatic
from swath.errors import Closed
from swath.group.group import Request, WorkerGroup
from swath.group.local import LocalFleet
from swath.group.stats import Counters
from swath.weights.channel import Channel, Life
from swath.workers.base import Shared
from swath.workers.fleet import Fleet
from swath.workers.tickets import Interrupted, Name


@dataclass
class WorkerRecord:
    """What is known of one worker, in all its lives.

    Attributes:
        frames: collected by it.
        fragments: made by it, also before its state was saved and loaded.
        next_id: above every trajectory id that it has given.
        version: with which its last fragment was made.
        lag: how many versions behind the newest that was meant for it this was when it arrived.
        life: the last life number that it has used; it may begin further lives by itself.
        asked: which life was asked last, on which version, and how often on that.
    """

    frames: int = 0
    fragments: int = 0
    next_id: int = 0
    version: int = 0
    lag: int = 0
    life: int = -1
    asked: tuple[tuple[Life, int] | None, int] = (None, 0)


def head_of(request: Request) -> Head:
    """What is known of a fragment that has arrived."""
    head: Head = request.reply.head
    return head


class Fragments(WorkerGroup):
    """The workers of a collection, fragments that are wanted of them, and records of those that were asked for.

    Args:
        fleet: the workers.
        channel: their weights.
        total: frames after which the run ends; `None` for no end.
        max_staleness: most versions that a fragment may be behind; `None` for any.

    Attributes:
        automatic: when the policy's weights are published.
        publish: publishes them.
        frames: asked of one worker at a time, by worker; the rows of synchronous batches.
        bell: numbers that workers see while they work, one each; a worker ends its fragment at its next step once its
            number has reached that of the request. `None` where nobody can end them.
        random_batches: how many of the batches that are asked for next are random.
        receive: takes the newest weights from elsewhere, if there are any.
        counters: totals.
        workers: what is known of them, by index.
        lives: what each life has counted.
        writing: workers write to the replay buffer themselves.
        held: by how many pauses: no further fragments are to be asked for then.
        fragments_lost: with workers that died, or by their stores.
    """

    def __init__(
        self, fleet: Fleet | LocalFleet, channel: Channel, total: int | None, max_staleness: int | None = None
    ) -> None:
        super().__init__(fleet, channel)
        self.frames: Mapping[int, int] = {}
        self.total, self.max_staleness, self.automatic = total, max_staleness, Automatic()
        self.publish = self.receive = cast("Callable[[], Any]", lambda: None)
        self.bell: Shared | None = None
        self.counters, self.random_batches, self.fragments_lost = Counters(), 0, 0
        self.workers: Mapping[int, WorkerRecord] = defaultdict(WorkerRecord)
        self.lives, self._over = defaultdict[Name, Tally](Tally), set[Name]()
        self.writing = self._drawn = False
        self.held = 0

    # ---- what is asked for

    def at_draw(self) -> None:
        """The user draws; call it once a draw, before workers are asked."""
        self.receive()
        due, self._drawn = self.automatic.each_draw if self._drawn else self.automatic.first_draw, True
        if due:
            self.publish()

    @property
    def wants_more(self) -> bool:
        """Whether more is wanted than is delivered or asked for. Frames count as asked for until they are delivered."""
        if self.held:
            return False
        if self.total is None:
            return True
        out: int = sum(request.asked.frames for request in self.out if not (request.dropped or request.closed))
        return self.counters.frames + out < self.total

    def next_round(self) -> Mapping[int, FragmentRequest]:
        """A share of every worker."""
        randomly = self._is_next_random()
        return {row: FragmentRequest(frames, randomly) for row, frames in sorted(self.frames.items())}

    def next_for(self, worker: int) -> FragmentRequest:
        """A fragment."""
        return FragmentRequest(self.frames[worker], self._is_next_random())

    def give_back(self, asked: FragmentRequest) -> None:
        """It was no random batch, then."""
        self.random_batches += asked.randomly

    def before_asking(self, workers: Collection[int]) -> None:
        """Publish newer weights first if one of these has used its own for too long.

        Not while the channel is held steady: other threads may publish, too.
        """
        most = self.automatic.most_fragments
        for worker in () if most is None else workers:
            last, times = self.workers[worker].asked
            newest = self.fleet.handle(worker).name, self.channel.version_for(worker)
            if most is not None and times >= most and last == newest:
                self.publish()

    def ask(self, worker: int, asked: FragmentRequest) -> Request:
        """Ask a worker that is up for one fragment, with the newest weights meant for it."""
        ask = replace(asked, number=self.last_number + 1, bell=self.bell, entry=worker)
        request = self.request(worker, "collect", ask, asked=ask)
        record, now = self.workers[worker], (request.name, self.channel.version_of(worker))
        last, times = record.asked
        record.asked = now, times + 1 if last == now else 1
        return request

    def hurry(self, request: Request) -> None:
        """Let a fragment end at its worker's next step."""
        if self.bell is not None:
            values = self.bell.open()
            values[request.worker] = max(values[request.worker], request.number)

    def end_all(self) -> None:
        """Let all fragments end so, also those that will be begun."""
        if self.bell is not None:
            with suppress(Closed):  # by another thread
                self.bell.open()[:] = np.iinfo(np.int64).max

    def is_stale(self, request: Request) -> bool:
        """Whether a fragment is dropped: its weights are too old, and it is not insisted on. What is too old counts."""
        version = head_of(request).version
        if self.max_staleness is None or request.asked.randomly or version < 0:
            return False
        if self.channel.version_for(request.worker) - version <= self.max_staleness:
            return False
        if request.insisted:
            self.counters.overdue()
        else:
            self.counters.drop(head_of(request).frames)
        return not request.insisted

    def _is_next_random(self) -> bool:
        """Whether the next batch to be asked for is random; it is then counted."""
        randomly = self.random_batches > 0
        self.random_batches -= randomly
        return randomly

    # ---- what becomes of it

    def tally(self) -> Tally:
        """Counts of all lives; what waited to be written in those that are over is lost."""
        lives = dict(self.lives)
        total = Tally(*(sum(getattr(tally, one.name) for tally in lives.values()) for one in fields(Tally)))
        if self.writing:
            total.frames_discarded += sum(tally.frames_left for name, tally in lives.items() if name in self._over)
        return total

    def arrived(self, request: Request) -> bool:
        """There is an answer: a fragment, or what went wrong. Whether it is a fragment, and wanted here.

        Raises:
            Exception: what user code raised in the worker, unless the worker is replaced.
        """
        if isinstance(request.reply, Broken):
            broken = request.reply
            self._note(request.name, broken.tally)
            if not broken.unfit:
                raise broken.error
            self.replace(request.name, broken.error)
            return False
        head, record = head_of(request), self.workers[request.worker]
        self._note(request.name, head.tally, head)
        record.next_id, record.version, record.life = head.next_id, head.version, max(record.life, head.life)
        record.fragments += 1
        self.counters.episodes.add(head.episodes)
        record.lag = max(0, self.channel.version_for(request.worker) - max(0, head.version))
        return True

    def lost(self, request: Request) -> None:
        """A life has ended; what it was working on is lost, what it would have begun later is not."""
        self.fragments_lost += request.name not in self._over
        self._over.add(request.name)

    def unwanted(self, request: Request) -> None:
        """Good frames that nobody will get, or that their worker has written by now."""
        head = head_of(request)
        if self.writing:
            self.counters.deliver(head.frames_written, batches=0)
        else:
            self.counters.discard(head.frames)

    def end(self) -> None:
        """Nobody works any more: what waits to be written never will be."""
        self._over.update(self.lives)

    def _note(self, name: Name, tally: Tally, head: Head | None = None) -> None:
        """What a life has counted, and the fragment that it sent with it.

        What is in no fragment that arrives was written by a request that raised, or Ctrl-C came while it was made.
        """
        before, self.lives[name] = self.lives[name], tally
        self.workers[name.worker].frames += tally.frames - before.frames
        sent, written = (0, 0) if head is None else (head.frames, head.frames_written)
        if self.writing:
            self.counters.deliver(tally.frames_written - before.frames_written - written, batches=0)
        else:
            self.counters.discard(max(0, tally.frames_left - before.frames_left - sent))


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
