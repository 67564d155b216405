"""The fragments of a collection: which worker is asked next, which reply comes next, and what is counted.

    Fragments requests fragments until the total is reached, with newer weights when these are due; counts what
              arrives, is lost or is too old. Two classes say in which order:
    InOrder   one request per row and round; a round is complete when every row has arrived, in whatever order
    AsReady   one reply after another, as they are ready; the worker that was served longest ago comes first

Both ask again for what was lost: the worker's next life, or another worker if it is gone for good. They keep what must
outlast an exception, so that the next draw goes on where the last one stopped.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from swath.collectors.jobs import WorkerJobs
from swath.collectors.messages import FragmentRequest, Head, Tally, head_of
from swath.errors import Closed
from swath.group.group import Counters, Request, WorkerGroup
from swath.group.local import LocalFleet
from swath.rollout.episodes.statistics import episodes_from_bytes
from swath.weights.channel import Channel
from swath.workers.base import Shared
from swath.workers.fleet import Fleet
from swath.workers.outcome import Error
from swath.workers.tickets import Name


def frames_left(tally: Tally) -> int:
    """Return the frames of a life that were sent, or wait in the worker to be written."""
    return tally.frames - tally.frames_discarded - tally.frames_written


class Fragments(WorkerGroup):
    """The workers of a collection, the requests for fragments, and what is known of each worker.

    Args:
        fleet: the workers.
        channel: their weights.
        jobs: options of the collection, counts of each worker, and whether workers write to the replay buffer.
        shares: frames of one request, by worker; the rows of synchronous batches.
        publish: publishes the policy's weights.
        stop_numbers: numbers that workers see while they work, one each; a worker ends its fragment at its next step
            once its number has reached the request's. `None` where fragments cannot be ended early.

    Attributes:
        total: frames after which the run ends; `None` for no end.
        random_batches: how many of the next batches are random.
        counters: totals.
        tallies: what each life has counted.
        pause_count: number of pauses that last; no further fragments are requested during a pause.
        fragments_lost: number of fragments that were lost with workers that died, or by their stores.
    """

    def __init__(
        self,
        fleet: Fleet | LocalFleet,
        channel: Channel,
        jobs: WorkerJobs,
        shares: Mapping[int, int],
        publish: Callable[[], Any],
        stop_numbers: Shared | None = None,
    ) -> None:
        super().__init__(fleet, channel)
        options, self.records, self.writing = jobs.options, jobs.records, jobs.writing is not None
        self.shares, self.total = shares, options.end
        self.counters, self.random_batches, self.fragments_lost, self.pause_count = Counters(), 0, 0, 0
        self.tallies = defaultdict[Name, Tally](Tally)
        self._automatic, self._publish, self._max_staleness = options.automatic, publish, options.max_staleness
        self._stop_numbers, self._ended, self._drawn = stop_numbers, set[Name](), False

    # ---- requests

    def begin_draw(self) -> None:
        """Publish the weights that are due when the user draws."""
        due, self._drawn = self._automatic.each_draw if self._drawn else self._automatic.first_draw, True
        if due:
            self._publish()

    @property
    def wants_more(self) -> bool:
        """Return whether the frames that are delivered or requested do not reach the total yet."""
        if self.pause_count:
            return False
        if self.total is None:
            return True
        pending: int = sum(
            request.purpose.frames for request in self.pending if not (request.dropped or request.closed)
        )
        return self.counters.frames + pending < self.total

    def set_shares(self, shares: Mapping[int, int]) -> None:
        """Set the frames of later requests, by worker."""
        self.shares = shares

    def set_random_batches(self, batches: int) -> None:
        """Set how many of the next batches are random."""
        self.random_batches = batches

    def draw_random(self) -> bool:
        """Return whether the next batch to request is random, and count it."""
        randomly = self.random_batches > 0
        self.random_batches -= randomly
        return randomly

    def return_random(self, randomly: bool) -> None:
        """Count a batch as not requested; `randomly` is the value of `draw_random` for the batch."""
        self.random_batches += randomly

    def publish_if_due(self, workers: Collection[int]) -> None:
        """Publish newer weights if a worker has used its weights for too many fragments.

        Call it while the channel is not held steady: other threads may publish, too.
        """
        if (limit := self._automatic.most_fragments) is None:
            return
        for worker in workers:
            last, times = self.records[worker].last_request
            if times >= limit and last == (self.fleet.handle(worker).name, self.channel.newest_version(worker)):
                self._publish()

    def request_fragment(self, worker: int, frames: int, *, randomly: bool) -> Request:
        """Request one fragment from a worker that is up, with the newest weights for it."""
        purpose = FragmentRequest(frames, randomly, self.last_number + 1, self._stop_numbers, worker)
        request = self.request(worker, "collect", purpose, purpose=purpose)
        record, current = self.records[worker], (request.name, self.channel.sent_version(worker))
        last, times = record.last_request
        record.last_request = current, times + 1 if last == current else 1
        return request

    def end_early(self, request: Request) -> None:
        """End a fragment at its worker's next step."""
        if self._stop_numbers is not None:
            numbers = self._stop_numbers.open()
            numbers[request.worker] = max(numbers[request.worker], request.number)

    def end_all_early(self) -> None:
        """End all fragments at the next step, also fragments that begin later."""
        if (stop_numbers := self._stop_numbers) is not None:
            with suppress(Closed):  # another thread may have closed it
                stop_numbers.open()[:] = np.iinfo(np.int64).max

    def pause(self) -> None:
        """Request no further fragments until every pause has ended."""
        self.pause_count += 1

    def resume(self, *, all_pauses: bool = False) -> None:
        """End one pause, or all of them; do nothing if none lasts."""
        self.pause_count = 0 if all_pauses else max(self.pause_count - 1, 0)

    def drop_if_stale(self, request: Request) -> bool:
        """Count a fragment whose weights are too old; return whether to drop it."""
        version = head_of(request).version
        if self._max_staleness is None or request.purpose.randomly:
            return False
        if self.channel.newest_version(request.worker) - version <= self._max_staleness:
            return False
        if request.deliver_if_stale:
            self.counters.count_overdue()
        else:
            self.counters.drop(head_of(request).frames)
        return not request.deliver_if_stale

    # ---- replies

    def tally(self) -> Tally:
        """Return the counts of all lives; rows that waited to be written in ended lives are lost."""
        tallies = dict(self.tallies)
        total = Tally(*map(sum, zip(*map(astuple, tallies.values()), strict=True)))
        if self.writing:
            total.frames_discarded += sum(frames_left(tally) for name, tally in tallies.items() if name in self._ended)
        return total

    def accept(self, request: Request) -> bool:
        """Count a fragment that has arrived."""
        head, record = head_of(request), self.records[request.worker]
        self._count(request.name, head.tally, head)
        record.next_id, record.version, record.life = head.next_id, head.version, max(record.life, head.life)
        record.fragments += 1
        self.counters.episodes.add(episodes_from_bytes(head.packed))
        record.lag = max(0, self.channel.newest_version(request.worker) - head.version)
        return True

    def note_failure(self, name: Name, failure: Error) -> None:
        """Add the counts of a life that failed; it has counted the lost fragment itself."""
        if failure.counts is not None:
            self._count(name, failure.counts)
            if failure.replace_worker:
                self._ended.add(name)

    def note_loss(self, request: Request) -> None:
        """Count the fragment that a life was making when it ended; those that it had not begun are not lost."""
        self.fragments_lost += request.name not in self._ended
        self._ended.add(request.name)

    def note_lost_body(self, request: Request) -> None:
        """Close a request whose fragment has been lost by its store, and count it."""
        self.fragments_lost += 1
        self.close(request)

    def note_unwanted(self, request: Request) -> None:
        """Count good frames that will not be delivered, or that their worker has written by now."""
        head = head_of(request)
        if self.writing:
            self.counters.deliver(head.frames_written, batches=0)
        else:
            self.counters.discard(head.frames)

    def end(self) -> None:
        """Count rows that wait in workers as lost, because all workers have ended."""
        self._ended.update(self.tallies)
        self._stop_numbers = None

    def _count(self, name: Name, tally: Tally, head: Head | None = None) -> None:
        """Add the counts of a life, and of the fragment that it sent with them.

        Frames that belong to no fragment that arrives come from a request that raised, or that Ctrl-C interrupted.
        """
        before, self.tallies[name] = self.tallies[name], tally
        self.records[name.worker].frames += tally.frames - before.frames
        sent_frames, written_frames = (0, 0) if head is None else (head.frames, head.frames_written)
        if self.writing:
            self.counters.deliver(tally.frames_written - before.frames_written - written_frames, batches=0)
        else:
            self.counters.discard(max(0, frames_left(tally) - frames_left(before) - sent_frames))


@dataclass
class Round:
    """A share of every worker.

    Attributes:
        frames: frames to request, by row.
        randomly: whether actions are random.
        requests: the last request for each row.
    """

    frames: Mapping[int, int]
    randomly: bool
    requests: dict[int, Request] = field(default_factory=dict)

    def request_of(self, row: int) -> Request | None:
        """Return the request for a row; `None` if there is none, or it is lost or dropped and must be made again."""
        request = self.requests.get(row)
        return None if request is None or request.closed or request.dropped else request

    def current_requests(self) -> list[Request]:
        """Return the requests that are neither lost nor dropped, in order of rows."""
        return [request for row in self.frames if (request := self.request_of(row)) is not None]


class InOrder:
    """Delivers whole rounds, in order; a worker's replies are delivered in the order in which it makes them.

    Call all methods under the lock of the group.

    Args:
        group: the workers, and the requests to them.
        ahead: how many further rounds are requested before one is handed out.
        min_replies: number of replies with which the other fragments of a round end early; `None` waits for all.
    """

    def __init__(self, group: Fragments, ahead: int, min_replies: int | None = None) -> None:
        self._group, self._ahead, self._min_replies = group, ahead, min_replies
        self._rounds: deque[Round] = deque()
        self._stand_ins = 0

    def next_requests(self) -> list[Request] | None:
        """Return the requests of the first round if all are answered; they are being delivered then.

        Raises:
            Exception: what user code raised in a worker; other answers stay for the next call.
        """
        group, current = self._group, [request for round_ in self._rounds for request in round_.current_requests()]
        requests = set(current)
        for request in group.open_requests():
            if request not in requests:  # Ctrl-C came while it was made
                group.cancel(request)
        if not self._rounds:
            return None
        first = self._rounds[0]
        answered = [request for request in first.current_requests() if request.answered]
        answered += [request for request in current if request.lost]
        if answered:
            group.settle_dropped()  # the worker answered the dropped requests first, so they are settled first
        for request in answered:
            if not request.closed:
                group.settle(request)
        ready = [request for request in first.current_requests() if request.reply is not None]
        if len(ready) < len(first.frames):
            return None
        for request in ready:
            request.being_delivered = True
        return ready

    def put_back(self, requests: Collection[Request]) -> None:
        """Undo `next_requests`; the requests that were closed meanwhile are made again."""
        for request in requests:
            request.being_delivered = False

    def finish(self) -> None:
        """End the round that is delivered."""
        self._rounds.popleft()

    def request_missing(self) -> list[Request] | None:
        """Make the requests that are missing, and return those to wait for; `None` if no more is wanted."""
        if not self._rounds and not self._begin_round():
            return None
        self._request_rows()
        current = self._rounds[0].current_requests()
        waiting = [request for request in current if request.reply is None]
        if self._min_replies is not None and len(current) - len(waiting) >= self._min_replies:
            for request in waiting:
                self._group.end_early(request)
        return waiting

    def request_ahead(self) -> None:
        """Request further rounds."""
        while len(self._rounds) <= self._ahead and self._begin_round():
            self._request_rows()

    def drop(self, workers: Collection[int] | None = None) -> None:
        """Drop the requests to all or some workers, and give up rounds that have none left."""
        self._group.drop(workers)
        while self._rounds and not self._rounds[-1].current_requests():
            self._group.return_random(self._rounds.pop().randomly)

    def _begin_round(self) -> bool:
        """Add a round, and return whether one was wanted."""
        group = self._group
        if (self._rounds and not self._rounds[-1].current_requests()) or not group.wants_more:
            return False
        self._rounds.append(Round(group.shares, group.draw_random()))
        return True

    def _request_rows(self) -> None:
        """Request the missing rows of all rounds, with the same weights.

        A worker answers in the order of requests. Before a row of an earlier round is requested, its requests for later
        rounds are cancelled, and made again.
        """
        group, missing, reordered = self._group, list[tuple[Round, int, int]](), set[int]()
        for round_ in self._rounds:
            for request in round_.current_requests():
                if request.worker in reordered:
                    group.cancel(request)
            for row in round_.frames:
                if round_.request_of(row) is None and (worker := self._worker_for(row)) is not None:
                    missing.append((round_, row, worker))
            reordered.update(worker for *_, worker in missing)
        group.publish_if_due([worker for *_, worker in missing])
        with group.channel.hold_newest():
            for round_, row, worker in missing:
                round_.requests[row] = group.request_fragment(worker, round_.frames[row], randomly=round_.randomly)

    def _worker_for(self, row: int) -> int | None:
        """Return the worker of a row, another one if it is gone, or `None` while it is coming back."""
        up = self._group.fleet.up
        if row in up:
            return row
        if not up or not self._group.is_gone(row):
            return None
        self._stand_ins += 1
        return sorted(up)[self._stand_ins % len(up)]


class AsReady:
    """Delivers one reply after another, as they are ready.

    A reply that is too old is dropped, and its worker is asked again; that reply is delivered whatever its age, so that
    no draw lasts for ever. Call all methods under the lock of the group.

    Args:
        group: the workers, and the requests to them.
        ahead: how many requests to each worker are made before a reply is handed out.
    """

    def __init__(self, group: Fragments, ahead: int) -> None:
        self._group, self._ahead = group, ahead
        self._deliver_next_of: set[int] = set()  # workers whose last reply was too old
        self._last_turn: dict[int, int] = {}
        self._turn = 0

    def next_requests(self) -> list[Request] | None:
        """Return the request whose reply comes next, if one is ready; it is being delivered then.

        Raises:
            Exception: what user code raised in a worker; other answers stay for the next call.
        """
        group = self._group
        answered = [request for request in group.open_requests() if request.answered]
        if answered:
            group.settle_dropped()
        for request in answered:
            has_reply = False
            try:
                has_reply = group.settle(request)
            finally:
                if not has_reply:
                    self._give_up(request)
        while ready := [request for request in group.open_requests() if request.reply is not None]:
            next_request = min(ready, key=lambda request: self._last_turn.get(request.worker, -1))
            if not group.drop_if_stale(next_request):
                self._turn += 1
                self._last_turn[next_request.worker] = self._turn
                next_request.being_delivered = True
                return [next_request]
            group.close(next_request)
            self._deliver_next_of.add(next_request.worker)
            if next_request.worker in group.fleet.up:
                self._request(next_request.worker)
        return None

    def put_back(self, requests: Collection[Request]) -> None:
        """Undo `next_requests`; workers whose requests were closed meanwhile are asked again as any other."""
        for request in requests:
            request.being_delivered = False
            if request.closed:
                self._give_up(request)

    def finish(self) -> None:
        """Do nothing: a reply leaves nothing behind."""

    def request_missing(self) -> list[Request] | None:
        """Make the requests that are missing, and return those to wait for; `None` if no more is wanted."""
        self._fill(max(self._ahead, 1))
        waiting = [request for request in self._group.open_requests() if request.reply is None]
        return waiting if waiting or self._group.wants_more else None

    def request_ahead(self) -> None:
        """Ask the worker of the reply, and others that have room for requests."""
        self._fill(self._ahead)

    def drop(self, workers: Collection[int] | None = None) -> None:
        """Drop the requests to all or some workers; the one that is being delivered is delivered, or put back."""
        for request in self._group.drop(workers):
            if not request.being_delivered:
                self._give_up(request)

    def _give_up(self, request: Request) -> None:
        self._group.return_random(request.purpose.randomly)
        if request.deliver_if_stale:
            self._deliver_next_of.add(request.worker)

    def _fill(self, limit: int) -> None:
        """Make requests, in turn, until every worker has this many."""
        open_requests = self._group.open_by_worker()
        for number in range(1, limit + 1):
            for worker in self._group.fleet.up:
                if open_requests[worker] < number:
                    self._request(worker)
                    open_requests[worker] += 1

    def _request(self, worker: int) -> None:
        group = self._group
        if group.wants_more:
            group.publish_if_due([worker])
            request = group.request_fragment(worker, group.shares[worker], randomly=group.draw_random())
            request.deliver_if_stale = worker in self._deliver_next_of
            self._deliver_next_of.discard(worker)
