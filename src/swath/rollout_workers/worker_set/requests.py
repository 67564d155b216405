"""Requests that nobody waits for at once: sent, kept apart by their tags, fetched when they are answered.

send(calls, tag) ─▶ out ─▶ fetch(tags) ─▶ Reply …   an exception leaves the other answers for the next fetch
answers that nobody waits for any more ─▶ the same, under the tag "late"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, TypeAlias

from swath.rollout_workers.worker_set.crew import Crew
from swath.rollout_workers.worker_set.resident import Call
from swath.workers.tickets import Ticket


@dataclass(frozen=True)
class Reply:
    """An answer: unpacks to, and is indexed as, `(worker_id, result)`.

    Attributes:
        worker: its id.
        result: what the call gave; None if it raised.
        life: in which of its lives the worker answered.
        version: of the weights that it had.
        tag: of the request.
        error: what the call raised, or how its worker was lost; None if it gave something.
    """

    worker: int
    result: Any
    life: int = 0
    version: int = 0
    tag: Any = None
    error: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.worker, self.result))

    def __getitem__(self, index: int) -> Any:
        return (self.worker, self.result)[index]


OnError: TypeAlias = Literal["raise", "return"]

LATE = "late"
"""The tag of answers that came when nobody waited for them any more."""

MOST_LATE = 100


@dataclass(frozen=True)
class Request:
    """A call that was sent.

    Attributes:
        ticket: of the call.
        tag: whose it is.
        version: of the weights that its worker has when it comes to it.
    """

    ticket: Ticket
    tag: Any
    version: int

    @property
    def worker(self) -> int:
        """Who was asked."""
        return self.ticket.name.worker


class Requests:
    """What is out.

    Args:
        most: requests per worker and tag.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._out: list[Request] = []
        self._late: list[Request] = []

    def number(self, tag: Any = None) -> int:
        """How many are not answered; None: of all tags."""
        return sum(not each.ticket.done for each in self._out if tag is None or each.tag == tag)

    def send(self, crew: Crew, dealt: Iterable[tuple[int, Call]], tag: Any) -> int:
        """Send each call, unless its worker has enough of that tag, or is late; how many were sent."""
        out = Counter(each.worker for each in self._out if each.tag == tag)
        sent = 0
        for worker, call in dealt:
            if crew.is_free(worker) and out[worker] < self._most:
                ticket = crew.send(worker, "run", *call)
                self._out.append(Request(ticket, tag, crew.channel.version_of(worker)))
                out[worker] += 1
                sent += 1
        return sent

    def keep_late(self, crew: Crew, tickets: Iterable[Ticket], tag: Any = LATE) -> None:
        """Keep the answers to these, the last 100, for whoever asks for them under the tag."""
        self._late += [Request(ticket, tag, crew.channel.version_of(ticket.name.worker)) for ticket in tickets]
        for forgotten in self._late[:-MOST_LATE]:
            crew.events.note(forgotten.ticket.name, "discarded", f"a late answer: more than {MOST_LATE} were kept")
        del self._late[:-MOST_LATE]

    def fetch(self, crew: Crew, tags: Sequence[Any] | None, timeout: float | None, on_error: OnError) -> list[Reply]:
        """The answers that are there when all are there, or the time is over.

        Args:
            crew: of which they are.
            tags: whose; None: of all but late ones.
            timeout: seconds; None: until all are there.
            on_error: raise the first exception of a call, and leave the other answers for the next time; or return it.

        Raises:
            Exception: what a call raised, or `WorkerLost`, or `WorkerLate` of a worker that hung.
        """
        wanted = self._wanted(tags)
        tickets = [each.ticket for each in wanted]
        if timeout == 0:
            crew.poll(tickets)
        else:
            crew.wait_all(tickets, float("inf") if timeout is None else monotonic() + timeout)
        done = [each for each in wanted if each.ticket.done]
        if on_error == "raise":
            self._raise_first(crew, done)
        return [reply for each in done if (reply := self._taken(crew, each, on_error)) is not None]

    def forget(self, worker: int) -> None:
        """Nobody asks for what this worker still owes."""
        self._out = [each for each in self._out if each.worker != worker]
        self._late = [each for each in self._late if each.worker != worker]

    def _wanted(self, tags: Sequence[Any] | None) -> list[Request]:
        if tags is None:
            return list(self._out)
        return [each for each in (*self._out, *self._late) if each.tag in tags]

    def _raise_first(self, crew: Crew, done: Sequence[Request]) -> None:
        for each in done:
            error = crew.error_of(each.ticket)
            if error is not None and not crew.is_borne(error):
                self._remove(each)
                crew.deaths.told(each.ticket.name)
                raise error

    def _taken(self, crew: Crew, request: Request, on_error: OnError) -> Reply | None:
        """The answer, which is out no more; None for that of a lost worker which is left out."""
        self._remove(request)
        error = crew.error_of(request.ticket)
        if error is None:
            crew.deaths.answered()
        elif on_error == "raise":
            return None
        crew.deaths.told(request.ticket.name)
        result = request.ticket.value if error is None else None
        life = request.ticket.name.life
        return Reply(request.worker, result, life=life, version=request.version, tag=request.tag, error=error)

    def _remove(self, request: Request) -> None:
        for requests in (self._out, self._late):
            if request in requests:
                requests.remove(request)
