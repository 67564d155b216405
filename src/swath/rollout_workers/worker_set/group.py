"""The remote workers of a set: a `WorkerGroup` whose requests have tags, and what has become of its workers.

ask ─▶ Request(Purpose) ─▶ outcome: value │ what user code raised │ loss of the worker, tolerated or not
                             └─ too late: kept under a tag, and its worker is asked nothing before it has answered

Used by one thread at a time.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.group.group import Request, WorkerGroup
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.weights.channel import Channel
from swath.workers.fleet import Fleet, News
from swath.workers.hosting import described
from swath.workers.tickets import Name, Received, Ticket

LATE = "late"
"""The tag of answers that came when nobody waited for them any more."""

FRAGMENT, FILTERS = object(), object()
"""Tags of fragments, and of what filters have seen."""

MOST_EVENTS = 10_000

Kind: TypeAlias = Literal["died", "hung", "replaced", "given up", "late", "discarded"]


class Event(NamedTuple):
    """Something that has happened.

    Attributes:
        time: when, in seconds of `time.time`.
        worker: to whom, by id.
        life: in which of its lives.
        kind: what.
        text: in words.
    """

    time: float
    worker: int
    life: int
    kind: Kind
    text: str


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


@dataclass
class Purpose:
    """What a request is for.

    Attributes:
        tag: by which it is found.
        overdue: somebody has waited for it in vain; its worker is asked nothing before it has answered.
        batch: of a fragment that is there: views of its arrays, good until the request is closed.
    """

    tag: Any
    overdue: bool = False
    batch: Any = None


class RolloutGroup(WorkerGroup):
    """The workers, and what they were asked for.

    Args:
        fleet: the workers.
        channel: what is new for them.
        config: of the set; it says which losses are tolerated, and how many in a row are too many.

    Attributes:
        frames: env steps of fragments, by worker.
        fragments_lost: that were asked for and did not come.
        removed: ids of workers that were taken out.
        tolerates: losses are not raised.
        events: what has happened, since somebody asked.
        unreported: workers whose next lives are up, and nobody knows yet.
    """

    fleet: Fleet

    def __init__(self, fleet: Fleet, channel: Channel, config: AlgorithmConfig) -> None:
        super().__init__(fleet, channel)
        fleet.listener = self._note_news
        self._most_in_a_row = config.num_consecutive_env_runner_failures_tolerance
        self.tolerates = config.restart_failed_env_runners or config.ignore_env_runner_failures
        self.frames, self.fragments_lost, self.removed = Counter[int](), 0, set[int]()
        self.events, self.unreported = deque[Event](maxlen=MOST_EVENTS), list[int]()
        self._in_a_row, self._to_raise = list[BaseException](), dict[Name, BaseException]()
        self._versions = dict[Name, int]()

    def ids(self) -> list[int]:
        """Of all workers that live or are coming back."""
        return [worker for worker, standing in self.fleet.standings().items() if standing.phase != "gone"]

    def is_late(self, worker: int) -> bool:
        """Whether somebody has waited in vain for an answer of it, and it has not come since."""
        return any(one.asked.overdue and one.worker == worker and not one.ticket.done for one in self.out)

    def is_free(self, worker: int) -> bool:
        """Whether it can be called, and is not late with something."""
        return worker in self.fleet.up and not self.is_late(worker)

    def version_of(self, name: Name) -> int:
        """Of the weights that a life is known to have; 0 before it has answered. Any thread may ask."""
        return self._versions.get(name, 0)

    def known_versions(self) -> dict[int, int]:
        """The same of each worker that lives or is coming back."""
        standings = self.fleet.standings()
        return {worker: self.version_of(Name(worker, standings[worker].life)) for worker in self.ids()}

    def tagged(self, tags: Collection[Any] | None = None) -> list[Request]:
        """What is out under these tags, in the order in which it was asked for; None: all that users give."""
        own = (FRAGMENT, FILTERS, LATE)
        return [one for one in self.wanted() if (one.asked.tag not in own if tags is None else one.asked.tag in tags)]

    def unanswered(self, tags: Collection[Any] | None = None) -> list[Request]:
        """Those of these that are not answered."""
        return [one for one in self.tagged(tags) if not one.ticket.done]

    def update(self, workers: Iterable[int], timeout: float) -> None:
        """Have these take what is new, and wait for it.

        Raises:
            WorkerLate: some have not; they do before their next fragment.
            WorkerLost: one died, and that is not tolerated.
            Exception: what one of them raised.
        """
        until, wanted = time.monotonic() + timeout, [*workers]
        self.wait_until(lambda: not any(map(self.is_late, wanted)), timeout)
        late = tuple(filter(self.is_late, wanted))
        try:
            self.answers(self.send(dict.fromkeys({*wanted}.difference(late), ("update",))), until - time.monotonic())
        except WorkerLate as error:
            late += error.workers
        if late:
            why = f"workers {list(late)} have not applied version {self.channel.version} within {timeout:g} s"
            raise WorkerLate(f"{why}; they do before their next fragment", workers=late, deadline=timeout)
        self.require_unharmed()

    def reply(self, request: Request) -> Reply:
        """What has come of a request that is answered; it is closed, unless there is a fragment."""
        name, result, error = request.name, None, None
        try:
            if self.settle(request) and request.asked.tag is not FRAGMENT:
                self.close(request)
                result = request.reply.value
            error = request.ticket.error  # that of a lost worker: what user code raised was raised
        except Exception as raised:  # noqa: BLE001  the caller gets it
            error = raised
        error = error and self.seen(name, error)
        return Reply(name.worker, result, name.life, self.version_of(name), request.asked.tag, error)

    def arrived(self, request: Request) -> bool:
        """Open a fragment.

        Raises:
            PayloadLost: it was lost by its store.
        """
        if isinstance(request.reply, Received):
            request.asked.batch = request.reply.open()
            self.frames[request.worker] += request.asked.batch.env_steps()
        return True

    def reply_in_time(self, worker: int, request: Request | None, timeout: float) -> Reply:
        """What has come of a request to a worker after so many seconds; None: it could not be asked."""
        if request is not None and request.ticket.done:
            return self.reply(request)
        if request is None and self.is_gone(worker):
            return Reply(worker, None, error=WorkerLost(f"worker {worker} was lost before it was asked", worker=worker))
        why = f"was not asked: it has not been free for {timeout:g} s"
        if request is not None:
            self.set_overdue([request])
            why = f"has not answered within {timeout:g} s; fetch_ready_async_reqs(tags='late') has its answer later"
        return Reply(worker, None, error=WorkerLate(f"worker {worker} {why}", workers=(worker,), deadline=timeout))

    def set_overdue(self, requests: Iterable[Request]) -> None:
        """Nobody waits for these any more."""
        for request in requests:
            if not request.asked.overdue:
                request.asked.overdue = True
                self.note(request.name, "late", f"{request.ticket.method}() is not waited for any more")

    def wait_until(self, is_over: Callable[[], bool], timeout: float) -> None:
        """Wait until this is so, or the time is over; it is asked again whenever something has happened.

        Raises:
            FleetFailed: too few are left, or too many died in a row.
        """
        until, left = time.monotonic() + timeout, timeout
        while True:
            done = {one for one in self.out if one.ticket.done}  # taken first: what comes later ends the wait
            if is_over() or left < 0:
                return
            self.wait([one for one in self.out if one not in done], lambda: False, self.news, left)
            self.require_few()
            left = until - time.monotonic()

    def note(self, name: Name, kind: Kind, text: str) -> None:
        """It happened just now to this life of a worker."""
        self.events.append(Event(time.time(), *name, kind, text))

    def is_tolerated(self, error: BaseException | None) -> bool:
        """Whether it is the loss of a worker, and not to be raised."""
        return self.tolerates and isinstance(error, WorkerLost)

    def require_few(self) -> None:
        """Raise `FleetFailed` if too many died in a row."""
        causes, most = tuple(self._in_a_row), self._most_in_a_row
        if len(causes) > most:
            why = f"more than num_consecutive_env_runner_failures_tolerance={most}; the last: {causes[-1]}"
            raise FleetFailed(f"{len(causes)} workers died in a row, {why}", causes=causes)

    def require_unharmed(self) -> None:
        """Raise a loss that is not tolerated, once.

        Raises:
            FleetFailed: too few are left, or too many died in a row.
            WorkerLate: a worker was ended because it took too long.
            WorkerLost: a worker died.
        """
        self.require_enough()
        self.require_few()
        for name, cause in [*self._to_raise.items()]:
            raise self.seen(name, cause)

    def seen(self, name: Name, error: BaseException) -> BaseException:
        """What a caller is to see of an error; a loss is not raised again."""
        if isinstance(error, WorkerLost):
            self._to_raise.pop(name, None)
            if name in self.fleet.late:
                limits = self.fleet.survival
                why = f"{described(name)} was ended: a request took longer than {limits.said('fragment_timeout_s')}"
                return WorkerLate(why, workers=(name.worker,), deadline=limits.fragment_timeout_s)
        return error

    def _value(self, ticket: Ticket) -> Any:
        """See `WorkerGroup`; those that died before this answer are no row any more."""
        value = super()._value(ticket)
        self._in_a_row.clear()
        self._versions[ticket.name] = (value.head if isinstance(value, Received) else value).version
        return value

    def _note_news(self, news: News, name: Name, cause: BaseException | None) -> None:
        """Note what became of a life of a worker."""
        if cause is not None:
            self.note(name, "hung" if name in self.fleet.late else "died", str(cause))
            self._in_a_row.append(cause)
            if not self.tolerates:
                self._to_raise[name] = cause
        elif news == "given up":
            self.note(name, news, f"worker {name.worker} is not replaced")
        elif name.life:
            self.note(name, "replaced", f"life {name.life} of worker {name.worker} is up")
            self.unreported.append(name.worker)
