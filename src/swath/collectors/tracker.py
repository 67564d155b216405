"""What the driver knows of its workers, and counts of what they were asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from swath.collectors.messages import Broken, Head, Tally, Written
from swath.group.group import RequestTracker, WorkerGroup
from swath.group.request import Request
from swath.group.stats import Counters
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
    """

    frames: int = 0
    fragments: int = 0
    next_id: int = 0
    version: int = 0
    lag: int = 0
    life: int = -1


@dataclass
class LifeRecord:
    """What is known of one life of a worker.

    Attributes:
        tally: what went wrong in it; it only grows.
        sent: frames that it has sent, by its own account.
        arrived: how many of these have arrived.
        waiting: frames that wait in it to be written by it.
        over: what it was working on is lost.
    """

    tally: Tally = field(default_factory=Tally)
    sent: int = 0
    arrived: int = 0
    waiting: int = 0
    over: bool = False


def _nothing(worker: int, trajectory: int) -> None:
    """Nobody puts episodes together."""


def head_of(request: Request) -> Head:
    """What is known of a fragment that has arrived."""
    head: Head = request.reply.head
    return head


@dataclass
class FragmentTracker(RequestTracker):
    """Counts fragments, good and lost; the `RequestTracker` of a collection's workers.

    Attributes:
        group: the workers.
        counters: of the collection.
        replaces: whether a worker whose env raises is replaced.
        skip: called with a worker and an id when a fragment of good frames is not delivered: episodes with lower ids
            lack frames.
        workers: what is known of them, by index.
        lives: what is known of each.
        fragments_lost: with workers that died, or by their stores.
    """

    group: WorkerGroup
    counters: Counters
    replaces: Callable[[int], bool]
    skip: Callable[[int, int], None] = _nothing
    workers: defaultdict[int, WorkerRecord] = field(default_factory=lambda: defaultdict(WorkerRecord))
    lives: defaultdict[Name, LifeRecord] = field(default_factory=lambda: defaultdict(LifeRecord))
    fragments_lost: int = 0

    def tally(self) -> Tally:
        """What went wrong in all lives."""
        tallies = [life.tally for life in list(self.lives.values())]
        return Tally(*(sum(getattr(tally, one.name) for tally in tallies) for one in fields(Tally)))

    def arrived(self, request: Request) -> bool:
        """There is an answer: a fragment, or what went wrong."""
        if isinstance(request.reply, Broken):
            self.require_whole(request.name, request.reply)
            return False
        head, worker, life = head_of(request), self.workers[request.worker], self.lives[request.name]
        life.sent = max(head.sent, life.sent)
        life.arrived += head.frames
        worker.next_id, worker.version, worker.life = head.next_id, head.version, head.life
        worker.fragments += 1
        worker.lag = max(0, self.group.channel.version_for(request.worker) - max(0, head.version))
        worker.frames += head.frames
        self.note(request.name, head.tally)
        self._count_missing(request, head)
        return head.written is None or self._is_written(request, head.written)

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
            self.counters.add(head.written.frames, head.written.episodes)
        else:
            self.counters.discard(head.frames)
            self.skip(request.worker, head.next_id)

    def gone(self, request: Request) -> None:
        """The arrays of a fragment are lost; its worker lives."""
        self.fragments_lost += 1
        self.skip(request.worker, head_of(request).next_id)

    def require_whole(self, name: Name, broken: Broken) -> None:
        """Note that a worker has answered with no fragment; it is replaced if that is to be done.

        Raises:
            Exception: what user code raised in it, unless the worker is replaced.
        """
        self.note(name, broken.tally)
        error = thawed(broken.error) if isinstance(broken.error, bytes) else broken.error
        if not (broken.unfit or (broken.by_env and self.replaces(name.worker))):
            raise error
        self.group.replace(name, error)

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

    def _is_written(self, request: Request, written: Written) -> bool:
        """Count what a worker has written; whether that was all.

        Raises:
            Exception: what was raised meanwhile.
        """
        life = self.lives[request.name]
        self.counters.discard(life.waiting + head_of(request).frames - written.frames - written.waiting)
        life.waiting = written.waiting
        if not written.error:
            return True
        self.unwanted(request)
        self.fragments_lost += not request.dropped
        raise thawed(written.error)

    def _count_missing(self, request: Request, head: Head) -> None:
        """Fragments that came before this one and belong to no request: Ctrl-C came while they were asked for."""
        name, life = request.name, self.lives[request.name]
        out = (one for one in self.group.out if one.name == name and one.number < request.number and one.reply is None)
        if next(out, None) is not None:
            return  # one that is on its way may be what is missing
        missing = max(0, life.sent - life.arrived)
        life.arrived += missing
        self.workers[name.worker].frames += missing
        if missing and head.written is not None:
            self.counters.add(missing)  # the worker has written them
        elif missing:
            self.counters.discard(missing)
            self.skip(request.worker, head.since)
