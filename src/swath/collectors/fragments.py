"""What workers are asked for, and what becomes of it.

Fragments are asked for until the total is reached, with newer weights when these are due. Those that arrive are
counted, and so is what is lost or too old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import numpy as np

from swath.collectors.messages import Broken, FragmentRequest, Head, Tally
from swath.collectors.options import Automatic
from swath.group.group import Request, WorkerGroup
from swath.group.local import LocalFleet
from swath.group.stats import Counters
from swath.weights.channel import Channel, Life
from swath.workers.base import Watched
from swath.workers.fleet import Fleet
from swath.workers.outcome import thawed
from swath.workers.tickets import Name


@dataclass
class WorkerRecord:
    """What is known of one worker, in all its lives.

    Attributes:
        frames: collected by it.
        fragments: made by it, also before its state was saved and loaded.
        next_id: above every trajectory id that it has given.
        version: with which its last fragment was made.
        lag: how many versions behind the newest that was meant for it this was when it arrived.
        life: in which of its lives that was.
        asked: which life was asked last, on which version, and how often on that.
    """

    frames: int = 0
    fragments: int = 0
    next_id: int = 0
    version: int = 0
    lag: int = 0
    life: int = -1
    asked: tuple[tuple[Life, int] | None, int] = (None, 0)


@dataclass
class LifeRecord:
    """What is known of one life of a worker.

    Attributes:
        tally: what went wrong in it; it only grows.
        sent: frames that it has sent.
        waiting: frames that wait in it to be written by it.
        over: what it was working on is lost.
    """

    tally: Tally = field(default_factory=Tally)
    sent: int = 0
    waiting: int = 0
    over: bool = False


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
        lives: what is known of each.
        held: no further fragments are to be asked for now.
        fragments_lost: with workers that died, or by their stores.
    """

    def __init__(
        self, fleet: Fleet | LocalFleet, channel: Channel, total: int | None, max_staleness: int | None = None
    ) -> None:
        super().__init__(fleet, channel)
        self.frames: Mapping[int, int] = {}
        self.total, self.max_staleness, self.automatic = total, max_staleness, Automatic()
        self.publish = self.receive = cast("Callable[[], Any]", lambda: None)
        self.bell: Watched | None = None
        self.counters, self.random_batches, self.fragments_lost = Counters(), 0, 0
        self.workers = defaultdict[int, WorkerRecord](WorkerRecord)
        self.lives = defaultdict[Name, LifeRecord](LifeRecord)
        self.held = self._drawn = False

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
            values = self.bell.values
            values[request.worker] = max(values[request.worker], request.number)

    def end_all(self) -> None:
        """Let all fragments end so, also those that will be begun."""
        if self.bell is not None:
            self.bell.values[:] = np.iinfo(np.int64).max

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
        """What went wrong in all lives."""
        tallies = [life.tally for life in list(self.lives.values())]
        return Tally(*(sum(getattr(tally, one.name) for tally in tallies) for one in fields(Tally)))

    def arrived(self, request: Request) -> bool:
        """There is an answer: a fragment, or what went wrong. Whether it is a fragment, and wanted here.

        Raises:
            Exception: what user code raised in the worker, unless the worker is replaced.
        """
        if isinstance(request.reply, Broken):
            broken = request.reply
            self.note(request.name, broken.tally)
            if not broken.unfit:
                raise broken.error
            self.replace(request.name, broken.error)
            return False
        head, record, life = head_of(request), self.workers[request.worker], self.lives[request.name]
        made, life.sent = head.sent - life.sent, head.sent
        record.frames += made
        if (missing := made - head.frames) > 0:  # it belongs to no request: Ctrl-C came while that was asked for
            if head.written is None:
                self.counters.discard(missing)
            else:
                self.counters.deliver(missing, batches=0)
        record.next_id, record.version, record.life = head.next_id, head.version, head.life
        record.fragments += 1
        record.lag = max(0, self.channel.version_for(request.worker) - max(0, head.version))
        self.note(request.name, head.tally)
        written = head.written
        if written is not None:
            self.counters.discard(life.waiting + head.frames - written.frames - written.waiting)
            life.waiting = written.waiting
            if written.error:
                self.unwanted(request)
                self.fragments_lost += not request.dropped
                raise thawed(written.error)
        return True

    def lost(self, request: Request) -> None:
        """A life has ended; what it was working on is lost, what it would have begun later is not."""
        life = self.lives[request.name]
        self.fragments_lost += not life.over
        life.over = True
        self._discard_waiting(life)

    def unwanted(self, request: Request) -> None:
        """Good frames that nobody will get, or that their worker has written by now."""
        head = head_of(request)
        if head.written is not None:
            self.counters.deliver(head.written.frames, head.written.episodes, batches=0)
        else:
            self.counters.discard(head.frames)

    def end(self) -> None:
        """Nobody works any more: what waits to be written never will be."""
        for life in self.lives.values():
            self._discard_waiting(life)

    def note(self, name: Name, tally: Tally) -> None:
        """What a life says went wrong in it; good frames that it has lost were collected."""
        life = self.lives[name]
        self.workers[name.worker].frames += tally.frames_discarded - life.tally.frames_discarded
        life.tally = tally

    def _discard_waiting(self, life: LifeRecord) -> None:
        self.counters.discard(life.waiting)
        life.waiting = 0
