"""Workers that answer requests, each with the newest weights that are meant for it.

    request(worker, method, …) ─▶ Request ─▶ wait ─▶ settle ─▶ a reply that is wanted, until it is closed
                                                        ├───▶ nothing: lost with its worker, or not wanted any more
                                                        └───▶ raises what user code raised in the worker

The fleet (`workers/fleet.py`) replaces workers that die, the channel (`weights/channel.py`) knows which weights a
request brings. Here is what was asked for and has not come to its end, and the base of what answers in a worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn

from swath.errors import WorkerLost
from swath.weights.channel import Channel, Update
from swath.workers.fleet import Fleet
from swath.workers.outcome import deserialize_error, serialize_error
from swath.workers.tickets import Interrupted, Name, Received, Ticket

if TYPE_CHECKING:
    from swath.group.local import LocalFleet


@dataclass(frozen=True)
class Unfit:
    """The answer of a member that is not what it should be, whatever it is asked: it has to be replaced.

    Attributes:
        error: why, as `outcome.frozen` wrote it.
    """

    error: bytes


class Member(ABC):
    """Answers requests, one after another, in one thread."""

    _unfit: Exception | None = None

    @abstractmethod
    def take(self, models: Mapping[str, Any], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""

    def answer(self, update: Update | None, method: str, *args: Any) -> Any:
        """Take newer weights, if they come with the request, and call a method; `Unfit` if they do not fit."""
        if update is not None and self._unfit is None:
            try:
                self.take(update.opened(), update.version)
            except Exception as error:  # noqa: BLE001  it travels with the answer
                self._unfit = error
        if self._unfit is not None:
            return Unfit(serialize_error(self._unfit))
        return getattr(self, method)(*args)


@dataclass(eq=False)
class Request:
    """What one worker was asked for. It settles once: with a reply, with what was raised, or with its worker's loss.

    Attributes:
        ticket: of the call.
        number: of the request; only grows.
        asked: what for, as the caller puts it.
        reply: what came of it, once it is settled and there is something.
        insisted: what comes of it is delivered, however old it is.
        dropped: nobody wants what comes of it any more.
        taken: what came of it is being delivered; its worker may be asked again.
        closed: it has come to its end.
    """

    ticket: Ticket
    number: int
    asked: Any = None
    reply: Any = None
    insisted = dropped = taken = closed = False

    @property
    def name(self) -> Name:
        """Which life of which worker was asked."""
        return self.ticket.name

    @property
    def worker(self) -> int:
        """Who was asked."""
        return self.ticket.name.worker

    @property
    def answered(self) -> bool:
        """Whether there is an answer that is not settled."""
        return self.reply is None and self.ticket.done

    @property
    def lost(self) -> bool:
        """Whether its worker has died before it answered."""
        return isinstance(self.ticket.error, WorkerLost)


class WorkerGroup:
    """Workers of one service, and what they were asked for. Any thread may use it; nobody waits under its lock.

    Attributes:
        fleet: the workers, which are `Member`s: who lives, and who comes back.
        channel: their weights.
        lock: guards what is out.
        out: requests that have not come to their end, in the order in which they were made.
        last_number: of the request that was made last.
    """

    def __init__(self, fleet: Fleet | LocalFleet, channel: Channel) -> None:
        self.fleet = fleet
        self.channel = channel
        self.lock = RLock()
        self.out: dict[Request, None] = {}
        self.last_number = 0

    # What becomes of requests, for services that count it; these calls come under the lock.

    def arrived(self, request: Request) -> bool:  # noqa: ARG002
        """There is a reply; whether it is of use.

        Raises:
            Exception: what user code raised in the worker.
        """
        return True

    def lost(self, request: Request) -> None:
        """Its worker has died before it replied."""

    def unwanted(self, request: Request) -> None:
        """There is a reply that was of use, and nobody will get it."""

    @property
    def news(self) -> int:
        """Changes whenever workers have come or gone."""
        return self.fleet.event_count

    def require_enough(self) -> None:
        """Raise `FleetFailed` if too few workers are left."""
        if (failure := self.fleet.failure) is not None:
            raise failure

    def is_gone(self, worker: int) -> bool:
        """Whether the worker was given up."""
        return self.fleet.statuses()[worker].phase == "gone"

    def request(self, worker: int, method: str, *args: Any, asked: Any = None) -> Request:
        """Ask a worker that is up, and return at once; the newest weights meant for it ride along.

        Args:
            worker: its index.
            method: of the member.
            *args: its arguments.
            asked: what for, as the caller puts it.
        """
        self.last_number += 1
        request = Request(self._ask(worker, method, *args, timed=True), self.last_number, asked)
        self.out[request] = None
        return request

    def wait(
        self, requests: Sequence[Request], interrupted: Interrupted, seen: int, timeout: float | None = None
    ) -> None:
        """Wait until one of the requests is answered, there is other news than what was `seen`, or the time is over.

        Raises:
            FleetFailed: too few workers are left, and nothing is answered.
            Closed: the workers were shut down.
        """
        self.sweep()
        self.fleet.wait([request.ticket for request in requests], timeout, interrupted, seen)

    def settle(self, request: Request) -> bool:
        """Take note of an answer; whether there is a reply that is wanted. It stays out until it is closed.

        Raises:
            Exception: what user code raised in the worker, if the reply is wanted.
        """
        try:
            request.reply = self._value(request.ticket)
            useful = self.arrived(request)
        except Exception as error:
            lost = isinstance(error, WorkerLost) and request.reply is None
            if lost:
                self.lost(request)
            self.close(request)
            if not (lost or request.dropped):
                raise
            return False
        if not useful:
            self.close(request)
        elif request.dropped:
            self.discard(request)
        return useful and not request.dropped

    def replace(self, name: Name, cause: BaseException) -> None:
        """End a life of a worker, which counts as its death; nothing if it is over."""
        handle = self.fleet.handle(name.worker)
        if handle.name == name:
            self.fleet.replace(handle, cause)

    def unfit(self, name: Name, error: BaseException) -> NoReturn:
        """A worker could not take its weights: it is replaced, and what it was asked for is lost."""
        self.replace(name, error)
        raise WorkerLost(f"{error}", worker=name.worker, life=name.life)

    def wanted(self) -> list[Request]:
        """What is out and not being delivered, in the order in which it was asked for."""
        return [one for one in self.out if not (one.dropped or one.taken or one.closed)]

    def out_by_worker(self) -> Counter[int]:
        """How many requests of each worker are out and not being delivered."""
        return Counter([request.worker for request in self.wanted()])

    def close(self, request: Request) -> None:
        """It has come to its end; memory of its reply goes back. Twice is fine."""
        request.closed = True
        self.out.pop(request, None)
        if isinstance(request.reply, Received):
            request.reply.close()

    def discard(self, request: Request) -> None:
        """Nobody will get its reply; nothing if it is closed."""
        if not request.closed:
            self.unwanted(request)
            self.close(request)

    def drop(self, workers: Collection[int] | None = None) -> list[Request]:
        """Nobody wants any more what is out, of all workers or of these.

        Returns:
            What was wanted until now.
        """
        dropped = [one for one in self.out if not one.dropped and (workers is None or one.worker in workers)]
        for request in dropped:
            self.cancel(request)
        return dropped

    def cancel(self, request: Request) -> None:
        """Nobody wants it any more; what is being delivered is left to whoever delivers it."""
        request.dropped = True
        if request.reply is not None and not request.taken:
            self.discard(request)

    def sweep(self) -> None:
        """Settle what is answered and nobody waits for any more; close what Ctrl-C has left half closed."""
        with self.lock:
            for request in [one for one in self.out if one.closed]:
                self.close(request)
            for request in [one for one in self.out if one.dropped and not one.taken and one.ticket.done]:
                self.settle(request)

    def to_all(self, *call: Any) -> dict[int, Sequence[Any]]:
        """The same call for every worker."""
        return dict.fromkeys(self.fleet.statuses(), call)

    def send(self, calls: Mapping[int, Sequence[Any]]) -> dict[int, Ticket]:
        """Call workers between two requests, and return at once; the tickets of those that are up.

        Workers that are still being built are called, too, and answer when they are built.

        Args:
            calls: method and arguments by worker.
        """
        with self.lock:
            standings = self.fleet.statuses()
            begun = [worker for worker in calls if standings[worker].phase in ("up", "starting")]
            tickets = {worker: self._ask(worker, *calls[worker]) for worker in begun}
            return {worker: ticket for worker, ticket in tickets.items() if worker in self.fleet.up}

    def answers(self, tickets: Mapping[int, Ticket], timeout: float | None = None) -> dict[int, Any]:
        """Wait for all of these; the answers by worker. Workers that die meanwhile give none.

        Raises:
            Closed: the workers were shut down.
            WorkerLate: somebody did not answer in time.
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
        """As `call`, with a call for each worker; those that are being replaced are waited for, and called then.

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
        """The answer of the first worker that is not gone; see `call_each`.

        Raises:
            FleetFailed, WorkerLost: there is none.
        """
        for worker in sorted(self.fleet.statuses()):
            if answers := self.call_each({worker: call}):
                return answers[worker]
        self.require_enough()
        raise WorkerLost(f"no worker is left to answer {call[0]}(); all were given up")

    def _ask(self, worker: int, method: str, *args: Any, timed: bool = False) -> Ticket:
        """Call a method of a worker, with the newest weights meant for it.

        Args:
            worker: its index.
            method: of the member.
            *args: its arguments.
            timed: whether the worker is replaced when this takes longer than `fragment_timeout_s`.
        """
        handle = self.fleet.handle(worker)
        with self.channel.update_for(handle.name) as update:
            ticket = self.fleet.call(handle, "answer", update, method, *args, timed=timed)
        ticket.method = method
        return ticket

    def _value(self, ticket: Ticket) -> Any:
        """The answer to a call that is done.

        Raises:
            WorkerLost: its worker has died, or is replaced because it was unfit.
            Exception: what the call raised.
        """
        value = ticket.value
        if isinstance(value, Unfit):
            self.unfit(ticket.name, deserialize_error(value.error))
        return value
