"""The remote workers of a set: a `WorkerGroup` whose requests have tags, and what has become of its workers.

ask ─▶ Request(Purpose) ─▶ outcome: value │ what user code raised │ loss of the worker, tolerated or not
                             └─ too late: kept under a tag, and its worker is asked nothing before it has answered

Whatever is waited for is waited for in `wait_until`. Used by one thread at a time.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from swath.errors import FleetFailed, PayloadLost, WorkerLate, WorkerLost
from swath.group.group import Request, WorkerGroup
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.weights.channel import Channel
from swath.workers.fleet import Fleet, News
from swath.workers.hosting import described
from swath.workers.tickets import Name, Received, Ticket

LATE = "late"
"""The tag of answers that came when nobody waited for them any more."""

FRAGMENT, FILTERS, UPDATE = object(), object(), object()
"""Tags of fragments, of what filters have seen, and of requests by which workers only take what is new."""

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
        versions: of the weights that workers are known to have; 0 before a life has answered. Any thread may ask.
        fragments_lost: that were asked for and did not come.
        removed: ids of workers that were taken out.
        tolerates: losses are not raised.
        events: what has happened, since somebody asked.
        unreported: workers whose next lives are up, and nobody knows yet.
    """

    fleet: Fleet
    _forgiven = 0  # the last request that was made when another fragment raised

    def __init__(self, fleet: Fleet, channel: Channel, config: AlgorithmConfig) -> None:
        super().__init__(fleet, channel)
        fleet.listener = self._note_news
        self._config = config
        self.tolerates = config.restart_failed_env_runners or config.ignore_env_runner_failures
        self.frames, self.versions = Counter[int](), Counter[int]()
        self.fragments_lost, self.removed = 0, set[int]()
        self.events, self.unreported = deque[Event](maxlen=MOST_EVENTS), list[int]()
        self._in_a_row, self._to_raise = list[BaseException](), dict[Name, BaseException]()

    def ids(self) -> list[int]:
        """Of all workers that live or are coming back."""
        return [worker for worker, standing in self.fleet.standings().items() if standing.phase != "gone"]

    def free(self) -> list[int]:
        """Workers that can be called, without those whose answer is overdue and has not come since."""
        late = {one.worker for one in self.out if one.asked.overdue and not one.ticket.done}
        return [worker for worker in self.fleet.up if worker not in late]

    def tagged(self, tags: Collection[Any] | None = None) -> list[Request]:
        """What is out under these tags, in the order in which it was asked for; None: all that users give."""
        own = (FRAGMENT, FILTERS, UPDATE, LATE)
        return [one for one in self.wanted() if (one.asked.tag not in own if tags is None else one.asked.tag in tags)]

    def unanswered(self, tags: Collection[Any] | None = None) -> list[Request]:
        """Those of these that are not answered."""
        return [one for one in self.tagged(tags) if not one.ticket.done]

    def ask_free(self, calls: Mapping[int, Sequence[Any]], asked: dict[int, Request], tag: Any = LATE) -> bool:
        """Ask those who are free and were not asked; whether all have answered, or are gone.

        Args:
            calls: method of the member and arguments, by worker.
            asked: who was asked; changed.
            tag: of the requests.
        """
        for worker in [each for each in self.free() if each in calls and each not in asked]:
            asked[worker] = self.request(worker, *calls[worker], asked=Purpose(tag))
        return all(asked[each].ticket.done if each in asked else self.is_gone(each) for each in calls)

    def replies(
        self,
        calls: Mapping[int, Sequence[Any]],
        timeout: float,
        tag: Any = LATE,
        asked: dict[int, Request] | None = None,
    ) -> list[Reply]:
        """Ask these, wait until all have answered or the time is over; a reply of each, by id. See `ask_free`."""
        known = {} if asked is None else asked
        self.wait_until(lambda: self.ask_free(calls, known, tag), timeout)
        return [self._reply_in_time(worker, known.get(worker), timeout) for worker in sorted(calls)]

    def failures(self, replies: Iterable[Reply], late: str, timeout: float) -> list[BaseException]:
        """Why some gave nothing, unless their loss is tolerated.

        Args:
            replies: of all.
            late: what those have not done who are late, in words.
            timeout: how long they were waited for.
        """
        errors = [one.error for one in replies if one.error is not None and not self.is_tolerated(one.error)]
        who = tuple(worker for error in errors if isinstance(error, WorkerLate) for worker in error.workers)
        if not who:
            return errors
        together = WorkerLate(f"workers {list(who)} have not {late}", workers=who, deadline=timeout)
        return [together, *(error for error in errors if not isinstance(error, WorkerLate))]

    def update(self, workers: Iterable[int], timeout: float) -> None:
        """Have these take what is new, and wait for it.

        Raises:
            WorkerLate: some have not; they do before their next fragment.
            WorkerLost: one died, and that is not tolerated.
            Exception: what one of them raised.
        """
        replies = self.replies(dict.fromkeys(workers, ("update",)), timeout, UPDATE)
        for request in self.tagged([UPDATE]):
            self.cancel(request)
        late = f"applied version {self.channel.version} within {timeout:g} s; they do before their next fragment"
        for failure in self.failures(replies, late, timeout):
            raise failure
        self.require_unharmed()

    def fragments(self, least: int, steps_of: Callable[[Any], int], timeout: float) -> list[Request]:
        """Have workers sample until there is enough. What is out, or there before, or after an exception, counts.

        Args:
            least: how many steps are enough; 0: one fragment per worker.
            steps_of: counts those of a batch.
            timeout: how long that may take, in seconds.

        Returns:
            The fragments that are in time, in order; they are to be closed.

        Raises:
            WorkerLate: none was in time.
            WorkerLost: a worker was lost, and that is not tolerated.
            Exception: what an env or a policy raised. In all cases other fragments stay for the next call.
        """
        config, wanted = self._config, least or len(self.ids())

        def share(one: Request) -> int:
            if not least:
                return 1
            if one.reply is not None:
                return steps_of(one.asked.batch)
            return config.get_rollout_fragment_length(one.worker) * config.num_envs_per_env_runner

        def made() -> list[Request]:
            return [one for one in self.tagged([FRAGMENT]) if one.reply is not None]

        def is_over() -> bool:
            for request in [one for one in self.tagged([FRAGMENT]) if one.answered]:
                self._open_fragment(request)
            while sum(map(share, self.tagged([FRAGMENT]))) < wanted and self._ask_another():
                pass
            return sum(map(share, made())) >= wanted

        self.wait_until(is_over, timeout)
        fragments, missing = made(), self.unanswered([FRAGMENT])
        if sum(map(share, fragments)) < wanted:
            self._set_overdue(missing)
        if not fragments:
            late = tuple(sorted({one.worker for one in missing} or self.ids()))
            why = f"no fragment of workers {list(late)} was there within {timeout:g} s (sample_timeout_s)"
            raise WorkerLate(f"{why}; they are delivered later", workers=late, deadline=timeout)
        return sorted(fragments, key=lambda one: (one.worker, one.number))

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
            self._require_few()
            left = until - time.monotonic()

    def reply(self, request: Request) -> Reply:
        """What has come of a request that is answered; it is closed, unless there is a fragment."""
        name, result, error = request.name, None, None
        try:
            if self.settle(request) and request.asked.tag is not FRAGMENT:
                self.close(request)
                result = request.reply[1]
            error = request.ticket.error  # that of a lost worker: what user code raised was raised
        except Exception as raised:  # noqa: BLE001  the caller gets it
            error = raised
        error = error and self._seen(name, error)
        return Reply(name.worker, result, name.life, self.versions[name.worker], request.asked.tag, error)

    def arrived(self, request: Request) -> bool:
        """Open a fragment.

        Raises:
            PayloadLost: it was lost by its store.
        """
        if isinstance(request.reply, Received):
            request.asked.batch = request.reply.open()
            self.frames[request.worker] += request.asked.batch.env_steps()
        return True

    def is_tolerated(self, error: BaseException | None) -> bool:
        """Whether it is the loss of a worker, and not to be raised."""
        return self.tolerates and isinstance(error, WorkerLost)

    def require_unharmed(self) -> None:
        """Raise a loss that is not tolerated, once.

        Raises:
            FleetFailed: too few are left, or too many died in a row.
            WorkerLate: a worker was ended because it took too long.
            WorkerLost: a worker died.
        """
        self.require_enough()
        self._require_few()
        for name, cause in [*self._to_raise.items()]:
            raise self._seen(name, cause)

    def _require_few(self) -> None:
        """Raise `FleetFailed` if too many died in a row."""
        causes, most = tuple(self._in_a_row), self._config.num_consecutive_env_runner_failures_tolerance
        if len(causes) > most:
            why = f"more than num_consecutive_env_runner_failures_tolerance={most}; the last: {causes[-1]}"
            raise FleetFailed(f"{len(causes)} workers died in a row, {why}", causes=causes)

    def _reply_in_time(self, worker: int, request: Request | None, timeout: float) -> Reply:
        """What has come of a request to a worker after so many seconds; None: it could not be asked."""
        if request is not None and request.ticket.done:
            return self.reply(request)
        if request is None and self.is_gone(worker):
            return Reply(worker, None, error=WorkerLost(f"worker {worker} was lost before it was asked", worker=worker))
        why = f"was not asked: it has not been free for {timeout:g} s"
        if request is not None:
            self._set_overdue([request])
            why = f"has not answered within {timeout:g} s; fetch_ready_async_reqs(tags='late') has its answer later"
        return Reply(worker, None, error=WorkerLate(f"worker {worker} {why}", workers=(worker,), deadline=timeout))

    def _set_overdue(self, requests: Iterable[Request]) -> None:
        """Nobody waits for these any more."""
        for request in requests:
            if not request.asked.overdue:
                request.asked.overdue = True
                self._note(request.name, "late", f"{request.ticket.method}() is not waited for any more")

    def _ask_another(self) -> bool:
        """Ask for a fragment who is free and has given least; whether there is one."""
        fragments = self.tagged([FRAGMENT])
        busy, given = {one.worker for one in fragments if one.reply is None}, Counter(one.worker for one in fragments)
        free = [worker for worker in self.free() if worker not in busy]
        if free:
            self.request(min(free, key=lambda each: (given[each], each)), "sample", asked=Purpose(FRAGMENT))
        return bool(free)

    def _open_fragment(self, request: Request) -> None:
        """Open an answer; what is lost, or was asked for before something else was raised, is out no more.

        Raises:
            Exception: what the worker raised.
        """
        error = self.reply(request).error
        if error is None:
            return
        is_lost = isinstance(error, PayloadLost | WorkerLost | WorkerLate)
        if is_lost:
            self.fragments_lost += 1
            self.fleet.look()  # it may have died since the last look, and is not to be asked again
        is_ignored = self.tolerates if is_lost else request.number <= self._forgiven
        if not (is_ignored or isinstance(error, PayloadLost)):
            self._forgiven = self._forgiven if is_lost else self.last_number
            raise error
        self._note(request.name, "discarded", f"a fragment: {error}")

    def _seen(self, name: Name, error: BaseException) -> BaseException:
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
        self.versions[ticket.name.worker] = value.head if isinstance(value, Received) else value[0]
        return value

    def _note(self, name: Name, kind: Kind, text: str) -> None:
        """It happened just now to this life of a worker."""
        self.events.append(Event(time.time(), *name, kind, text))

    def _note_news(self, news: News, name: Name, cause: BaseException | None) -> None:
        """Note what became of a life of a worker."""
        if cause is not None:
            self.versions[name.worker] = 0
            self._note(name, "hung" if name in self.fleet.late else "died", str(cause))
            self._in_a_row.append(cause)
            if not self.tolerates:
                self._to_raise[name] = cause
        elif news == "given up":
            self._note(name, news, f"worker {name.worker} is not replaced")
        elif name.life:
            self._note(name, "replaced", f"life {name.life} of worker {name.worker} is up")
            self.unreported.append(name.worker)
