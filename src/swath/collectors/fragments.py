"""What workers are asked for, and what becomes of it.

Fragments are asked for until the total is reached, with newer weights when these are due. Those that arrive are
counted, and so is what is lost or too old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, cast

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
