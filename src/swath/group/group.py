"""Workers that answer requests, each with the newest weights for it.

    request(worker, method, …) ─▶ Request ─▶ wait ─▶ settle ─▶ a reply, kept until the request is closed
                                                        ├───▶ no reply: the worker was lost, or the request dropped
                                                        └───▶ an exception that user code raised in the worker

The fleet (`workers/fleet.py`) replaces workers that die, the channel (`weights/channel.py`) knows which weights a
request carries. This module keeps the pending requests. It also has the base class of objects that answer in a worker,
and the counts of a collection.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import Any

from swath.errors import WorkerLost, warn
from swath.group.local import LocalFleet
from swath.rollout.episodes.statistics import EpisodeLog
from swath.weights.channel import Channel, Update
from swath.workers.fleet import Fleet
from swath.workers.outcome import Error
from swath.workers.tickets import Interrupted, Name, Received, Ticket


class Member(ABC):
    """Answers requests, one after another, in one thread."""

    _failed_update: Error | None = None

    @abstractmethod
    def apply_weights(self, models: Mapping[str, Any], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""

    def answer(self, update: Update | None, method: str, *args: Any) -> Any:
        """Apply newer weights if the request carries some, then call the method; `Error` if they do not fit."""
        if update is not None and self._failed_update is None:
            try:
                self.apply_weights(update.opened(), update.version)
            except Exception as error:  # noqa: BLE001  it travels with the answer
                self._failed_update = Error(error, replace_worker=True)
        return getattr(self, method)(*args) if self._failed_update is None else self._failed_update


@dataclass(eq=False)
class Request:
    """A request to one worker. It settles once: with a reply, with an exception, or with the loss of its worker.

    Attributes:
        ticket: ticket of the call.
        number: number of the request; numbers only grow.
        purpose: why the service made the request.
        reply: the answer, once the request is settled.
        deliver_if_stale: whether the reply is delivered however old its weights are.
        dropped: whether the reply is not wanted any more.
        being_delivered: whether the reply is being delivered; its worker may get further requests.
        closed: whether the request has ended.
    """

    ticket: Ticket
    number: int
    purpose: Any = None
    reply: Any = None
    deliver_if_stale = dropped = being_delivered = closed = False

    @property
    def name(self) -> Name:
        """Return which life of which worker got the request."""
        return self.ticket.name

    @property
    def worker(self) -> int:
        """Return the index of the worker."""
        return self.ticket.name.worker

    @property
    def answered(self) -> bool:
        """Return whether there is an answer that is not settled."""
        return self.reply is None and self.ticket.done

    @property
    def lost(self) -> bool:
        """Return whether the worker died before it answered."""
        return isinstance(self.ticket.error, WorkerLost)


class WorkerGroup:
    """Workers of one service, and the requests to them. Any thread may use it; no thread waits under its lock.

    Attributes:
        fleet: the workers, which are `Member`s; it says which live and which are being replaced.
        channel: their weights.
        lock: guards the pending requests.
        pending: requests that have not ended, in the order in which they were made.
        last_number: number of the newest request.
    """

    def __init__(self, fleet: Fleet | LocalFleet, channel: Channel) -> None:
        self.fleet = fleet
        self.channel = channel
        self.lock = RLock()
        self.pending: dict[Request, None] = {}
        self.last_number = 0

    # Services override these to count; all are called under the lock.

    def accept(self, request: Request) -> bool:  # noqa: ARG002
        """Take in a reply, and return whether it is of use.

        Raises:
            Exception: whatever makes the reply unusable for the caller.
        """
        return True

    def note_failure(self, name: Name, failure: Error) -> None:
        """Count a failure that a life of a worker has answered."""

    def note_loss(self, request: Request) -> None:
        """Count a request whose worker was lost before it replied."""

    def note_unwanted(self, request: Request) -> None:
        """Count a useful reply that will not be delivered."""

    def require_enough_workers(self) -> None:
        """Raise `FleetFailed` if too few workers are left."""
        if (failure := self.fleet.failure) is not None:
            raise failure

    def is_gone(self, worker: int) -> bool:
        """Return whether the worker was given up."""
        return self.fleet.statuses()[worker].phase == "gone"

    def request(self, worker: int, method: str, *args: Any, purpose: Any = None) -> Request:
        """Send a request to a worker that is up, with the newest weights for it, and return at once.

        Args:
            worker: its index.
            method: name of a method of the member.
            *args: its arguments.
            purpose: why the service makes the request.
        """
        self.last_number += 1
        request = Request(self._send(worker, method, *args, timed=True), self.last_number, purpose)
        self.pending[request] = None
        return request

    def wait(
        self, requests: Sequence[Request], interrupted: Interrupted, membership: int, timeout: float | None = None
    ) -> None:
        """Wait until a request is answered, workers come or go, or the time is over.

        Args:
            requests: the requests to wait for.
            interrupted: ends the wait when it returns true.
            membership: the last `event_count` of the fleet that the caller knows.
            timeout: time limit in seconds; `None` for no limit.

        Raises:
            FleetFailed: too few workers are left, and no request is answered.
            Closed: the workers were shut down.
        """
        self.settle_dropped()
        self.fleet.wait([request.ticket for request in requests], timeout, interrupted, membership)

    def settle(self, request: Request) -> bool:
        """Take in an answer, and return whether there is a reply to deliver. It stays pending until it is closed.

        Raises:
            Exception: what user code raised in the worker, unless the request was dropped.
        """
        try:
            request.reply = self._value(request.ticket)
            useful = self.accept(request)
        except Exception as error:
            lost = isinstance(error, WorkerLost) and request.reply is None
            if lost:
                self.note_loss(request)
            self.close(request)
            if not (lost or request.dropped):
                raise
            return False
        if not useful:
            self.close(request)
        elif request.dropped:
            self.discard(request)
        return useful and not request.dropped

    def open_requests(self) -> list[Request]:
        """Return the requests that are neither dropped, being delivered nor closed, in the order of their numbers."""
        pending = self.pending
        return [request for request in pending if not (request.dropped or request.being_delivered or request.closed)]

    def open_by_worker(self) -> Counter[int]:
        """Return the number of open requests of each worker."""
        return Counter([request.worker for request in self.open_requests()])

    def close(self, request: Request) -> None:
        """End a request, and release the memory of its reply. A second call does nothing."""
        request.closed = True
        self.pending.pop(request, None)
        if isinstance(request.reply, Received):
            request.reply.close()

    def discard(self, request: Request) -> None:
        """Close a request whose reply will not be delivered; do nothing if it is closed."""
        if not request.closed:
            self.note_unwanted(request)
            self.close(request)

    def drop(self, workers: Collection[int] | None = None) -> list[Request]:
        """Cancel all pending requests, or those to some workers, and return those that were not dropped before."""
        dropped = [
            request
            for request in self.pending
            if not request.dropped and (workers is None or request.worker in workers)
        ]
        for request in dropped:
            self.cancel(request)
        return dropped

    def cancel(self, request: Request) -> None:
        """Drop a request; if its reply is being delivered, the delivery closes it."""
        request.dropped = True
        if request.reply is not None and not request.being_delivered:
            self.discard(request)

    def settle_dropped(self) -> None:
        """Settle dropped requests that are answered, and close requests that Ctrl-C left half closed."""
        with self.lock:
            for request in [request for request in self.pending if request.closed]:
                self.close(request)
            dropped = [request for request in self.pending if request.dropped and not request.being_delivered]
            for request in [request for request in dropped if request.ticket.done]:
                self.settle(request)

    def to_all(self, *call: Any) -> dict[int, Sequence[Any]]:
        """Return the same call for every worker."""
        return dict.fromkeys(self.fleet.statuses(), call)

    def send(self, calls: Mapping[int, Sequence[Any]]) -> dict[int, Ticket]:
        """Call workers between two requests, and return the tickets of those that are up at once.

        Workers that are still being built are called, too, and answer when they are built.

        Args:
            calls: method and arguments by worker.
        """
        with self.lock:
            statuses = self.fleet.statuses()
            callable_now = [worker for worker in calls if statuses[worker].phase in ("up", "starting")]
            tickets = {worker: self._send(worker, *calls[worker]) for worker in callable_now}
            return {worker: ticket for worker, ticket in tickets.items() if worker in self.fleet.up}

    def answers(self, tickets: Mapping[int, Ticket], timeout: float | None = None) -> dict[int, Any]:
        """Wait for the tickets, and return the answers by worker. Workers that die meanwhile give none.

        Raises:
            Closed: the workers were shut down.
            WorkerLate: a worker did not answer in time.
            Exception: what a worker raised.
        """
        self.fleet.wait_for_all(list(tickets.values()), timeout)
        answers = {}
        with self.lock:
            for worker, ticket in tickets.items():
                with suppress(WorkerLost):  # its next life is built as if it had been called
                    answers[worker] = self._value(ticket)
        return answers

    def call(self, *call: Any) -> dict[int, Any]:
        """Call every worker that is up, and wait; see `answers`."""
        return self.answers(self.send(self.to_all(*call)))

    def call_each(self, calls: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Make one call per worker, and wait; workers that are being replaced are waited for and then called.

        Workers that are gone for good give no answer.
        """
        answers: dict[int, Any] = {}
        while missing := [worker for worker in calls if worker not in answers and not self.is_gone(worker)]:
            self.fleet.wait_until_back(missing)
            tickets = self.send({worker: calls[worker] for worker in missing})
            if not tickets:
                break
            answers |= self.answers(tickets)
        return {worker: answers[worker] for worker in calls if worker in answers}

    def call_first(self, *call: Any) -> Any:
        """Return the answer of the first worker that is not gone; see `call_each`.

        Raises:
            FleetFailed, WorkerLost: all workers are gone.
        """
        for worker in sorted(self.fleet.statuses()):
            if answers := self.call_each({worker: call}):
                return answers[worker]
        self.require_enough_workers()
        raise WorkerLost(f"no worker is left to answer {call[0]}(); all were given up")

    def _send(self, worker: int, method: str, *args: Any, timed: bool = False) -> Ticket:
        """Call a method of a worker, with the newest weights for it.

        Args:
            worker: its index.
            method: name of a method of the member.
            *args: its arguments.
            timed: whether the worker is replaced when this takes longer than `fragment_timeout_s`.
        """
        handle = self.fleet.handle(worker)
        with self.channel.update_for(handle.name) as update:
            ticket = self.fleet.call(handle, "answer", update, method, *args, timed=timed)
        ticket.method = method
        return ticket

    def _value(self, ticket: Ticket) -> Any:
        """Return the answer to a call that is done.

        Raises:
            WorkerLost: the worker has died, or is replaced because it cannot go on.
            Exception: what the call raised.
        """
        failure, name = ticket.outcome, ticket.name
        if isinstance(failure, Error):
            self.note_failure(name, failure)
            if failure.replace_worker:
                self.fleet.replace(name, failure.exception)
                raise WorkerLost(f"{failure.exception}", worker=name.worker, life=name.life)
        return ticket.value


@dataclass
class Counters:
    """Totals of one collection; any thread may count.

    Attributes:
        frames: valid frames delivered to the user or written to a buffer.
        batches: batches delivered or written.
        episodes: episodes that have ended.
        frames_discarded: good frames that were never delivered.
        frames_dropped: good frames that were too old to be delivered.
        batches_dropped: fragments that were too old.
        batches_overdue: fragments that were delivered although they were too old.
        seconds_waiting: time that draws have waited.
    """

    frames: int = 0
    batches: int = 0
    frames_discarded: int = 0
    frames_dropped: int = 0
    batches_dropped: int = 0
    batches_overdue: int = 0
    seconds_waiting: float = 0.0
    episodes: EpisodeLog = field(default_factory=EpisodeLog, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)
    _began: float | None = field(default=None, repr=False)
    _frames_before: int = field(default=0, repr=False)

    def deliver(self, frames: int, *, batches: int = 1) -> None:
        """Count a batch that was handed out or written; with 0 `batches` a part of one."""
        with self._lock:
            self.batches += batches
            self.frames += frames

    def discard(self, frames: int) -> None:
        """Count good frames that will never be delivered."""
        with self._lock:
            self.frames_discarded += frames

    def drop(self, frames: int) -> None:
        """Count a fragment that was too old."""
        with self._lock:
            self.frames_dropped += frames
            self.batches_dropped += 1

    def count_overdue(self) -> None:
        """Count a fragment that is delivered although it is too old; warn once."""
        with self._lock:
            self.batches_overdue += 1
            first = self.batches_overdue == 1
        if first:
            warn(
                "weights are published faster than fragments are made, so that every fragment is older than "
                "max_staleness allows; one after each that is dropped is delivered: raise max_staleness, "
                "publish less often, or lower frames_per_batch"
            )

    def restore(self, frames: int, batches: int) -> None:
        """Set the counts to saved ones; frames per second stay those since the first draw."""
        with self._lock:
            self._frames_before += frames - self.frames
            self.frames, self.batches = frames, batches

    def start_clock(self) -> None:
        """Start the clock at the first draw."""
        if self._began is None:
            self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds since the first draw began; 0 before it."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    @property
    def fps(self) -> float:
        """Return the delivered frames per second since the first draw."""
        return (self.frames - self._frames_before) / max(self.seconds, 1e-9)


def worker_facts(
    fleet: Fleet | LocalFleet, numbers: Mapping[int, tuple[int, int, int, int]], *, closed: bool, first: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts of workers for `stats()`: of all together, and of each.

    Args:
        fleet: the workers.
        numbers: frames, life, version, and number of versions behind the newest, by worker.
        closed: whether the service was shut down.
        first: index of the first worker in the names of facts.
    """
    statuses, of_workers = fleet.statuses(), dict[str, Any]()
    for worker, values in numbers.items():
        prefix, state = f"worker_{first + worker}", "closed" if closed else statuses[worker].summary
        facts = zip(("frames", "life", "policy_version", "staleness"), values, strict=True)
        of_workers |= {f"{prefix}/{name}": value for name, value in facts} | {f"{prefix}/state": state}
    present = [values for worker, values in numbers.items() if statuses[worker].phase != "gone"]
    together = {
        "policy_version_min": min((version for _, _, version, _ in present), default=0),
        "staleness": max((lag for *_, lag in present), default=0),
        "restarts": fleet.restarts,
        "workers": len(numbers),
        "workers_alive": 0 if closed else len(fleet.up),
        "workers_lost": len(numbers) - len(present),
        "late": len(fleet.late),
    }
    return together, of_workers


def select_view(workers: str, aggregate: dict[str, Any], per_worker: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of one of the views.

    Raises:
        ValueError: an unknown view.
    """
    views = {"aggregate": aggregate, "per_worker": per_worker, "both": {**aggregate, **per_worker}}
    if workers not in views:
        raise ValueError(f"workers must be one of {', '.join(map(repr, views))}, got {workers!r}")
    return views[workers]
