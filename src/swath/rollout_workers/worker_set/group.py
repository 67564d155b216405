"""The remote workers of a set: a `WorkerGroup` whose requests have tags, and the history of its workers.

request(Purpose) ─▶ outcome: value │ exception of user code │ loss of the worker, tolerated or not
                      └─ too late: kept under a tag, and its worker gets no request before it has answered

All waiting is done in `wait_until`. Used by one thread at a time.
"""

from __future__ import annotations

import copy
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from swath.errors import FleetFailed, PayloadLost, WorkerLate, WorkerLost
from swath.group.group import Request, WorkerGroup, worker_facts
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch, concat_samples
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.nests import holds_objects, leaves
from swath.weights.channel import Channel
from swath.workers.fleet import Fleet, LifeEvent
from swath.workers.tickets import Name, Received, Ticket

LATE = "late"
"""The tag of answers that came after their callers had stopped waiting."""

FRAGMENT, FILTERS, UPDATE = object(), object(), object()
"""Tags of fragments, of what filters have seen, and of requests by which workers only apply changes."""

MOST_EVENTS = 10_000

Batch: TypeAlias = SampleBatch | MultiAgentBatch
Kind: TypeAlias = Literal["died", "hung", "replaced", "given up", "late", "discarded"]


class Event(NamedTuple):
    """An event in the life of a worker.

    Attributes:
        time: in seconds of `time.time`.
        worker: its id.
        life: which of its lives.
        kind: what happened.
        text: a description.
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
        result: of the call; None if it raised.
        life: in which of its lives the worker answered.
        version: of the weights that it had.
        tag: of the request.
        error: what the call raised, or how its worker was lost; None if there is a result.
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
    """The purpose of a request.

    Attributes:
        tag: by which it is found.
        overdue: its caller has stopped waiting; its worker gets no request before it has answered.
        batch: of a fragment that has arrived: views of its arrays, valid until the request is closed.
    """

    tag: Any
    overdue: bool = False
    batch: Any = None


class RolloutGroup(WorkerGroup):
    """The remote workers, and the requests to them.

    Args:
        fleet: the workers.
        channel: changes for them.
        config: of the set; it says which losses are tolerated, and how many in a row are too many.

    Attributes:
        frames: env steps of fragments, by worker.
        versions: of the weights that workers are known to have; 0 before a life has answered. Any thread may read it.
        fragments_lost: number of fragments that were requested and did not come.
        removed: ids of workers that were removed.
        tolerates_losses: losses are not raised.
        events: since the caller last took them.
        unreported: workers whose next lives are up, which callbacks do not know yet.
    """

    fleet: Fleet
    _last_ignored = 0  # the last request that was made before another fragment raised

    def __init__(self, fleet: Fleet, channel: Channel, config: AlgorithmConfig) -> None:
        super().__init__(fleet, channel)
        fleet.listener = self._record_change
        self._config = config
        self.tolerates_losses = config.restart_failed_env_runners or config.ignore_env_runner_failures
        self.frames, self.versions = Counter[int](), Counter[int]()
        self.fragments_lost, self.removed = 0, set[int]()
        self.events, self.unreported = deque[Event](maxlen=MOST_EVENTS), list[int]()
        self._deaths_in_a_row, self._unraised_losses = list[BaseException](), dict[Name, BaseException]()

    def ids(self) -> list[int]:
        """Return the ids of all workers that live or are coming back."""
        return [worker for worker, status in self.fleet.statuses().items() if status.phase != "gone"]

    def select(self, worker_ids: Sequence[int] | None) -> list[int]:
        """Return which of the workers live or are coming back; None: all.

        Raises:
            ValueError: an id of no worker.
        """
        present, existing = self.ids(), {*self.fleet.statuses()} - self.removed
        if unknown := [worker for worker in worker_ids or () if worker not in existing]:
            raise ValueError(f"worker_ids={worker_ids} has {unknown}, and the remote workers are {sorted(existing)}")
        return present if worker_ids is None else [worker for worker in dict.fromkeys(worker_ids) if worker in present]

    def free(self) -> list[int]:
        """Return the workers that can be called, without those that have not answered an overdue request."""
        late = {request.worker for request in self.pending if request.purpose.overdue and not request.ticket.done}
        return [worker for worker in self.fleet.up if worker not in late]

    def tagged(self, tags: Collection[Any] | None = None) -> list[Request]:
        """Return the open requests with these tags, in order; None: with all tags that users give."""
        internal = (FRAGMENT, FILTERS, UPDATE, LATE)
        requests = self.open_requests()
        if tags is None:
            return [request for request in requests if request.purpose.tag not in internal]
        return [request for request in requests if request.purpose.tag in tags]

    def unanswered(self, tags: Collection[Any] | None = None) -> list[Request]:
        """Return the requests with these tags that are not answered; None: with all tags that users give."""
        return [request for request in self.tagged(tags) if not request.ticket.done]

    def call_free(self, calls: Mapping[int, Sequence[Any]], requests: dict[int, Request], tag: Any = LATE) -> bool:
        """Call the free workers that have no request yet; return whether all have answered, or are gone.

        Args:
            calls: method of the member and arguments, by worker.
            requests: by worker; new ones are added.
            tag: of the requests.
        """
        for worker in [worker for worker in self.free() if worker in calls and worker not in requests]:
            requests[worker] = self.request(worker, *calls[worker], purpose=Purpose(tag))
        return all(requests[worker].ticket.done if worker in requests else self.is_gone(worker) for worker in calls)

    def replies(
        self, calls: Mapping[int, Sequence[Any]], requests: dict[int, Request], timeout: float, tag: Any = LATE
    ) -> list[Reply]:
        """Call workers, wait for their answers or for the timeout, and return a reply of each, by id.

        See `call_free` for the arguments.
        """
        self.wait_until(lambda: self.call_free(calls, requests, tag), timeout)
        return [self._reply_in_time(worker, requests.get(worker), timeout) for worker in sorted(calls)]

    def failures(self, replies: Iterable[Reply], late: str, timeout: float) -> list[BaseException]:
        """Return the errors among replies that are not tolerated, with one `WorkerLate` for all late workers.

        Args:
            replies: of all workers.
            late: what the late workers have not done, in words.
            timeout: how long the caller has waited.
        """
        errors = [reply.error for reply in replies if reply.error is not None and not self.is_tolerated(reply.error)]
        workers = tuple(worker for error in errors if isinstance(error, WorkerLate) for worker in error.workers)
        if not workers:
            return errors
        late_error = WorkerLate(f"workers {list(workers)} have not {late}", workers=workers, deadline=timeout)
        return [late_error, *(error for error in errors if not isinstance(error, WorkerLate))]

    def update(self, workers: Iterable[int], timeout: float) -> None:
        """Wait until these workers have applied the newest changes.

        Raises:
            WorkerLate: some have not; they apply them before their next fragment.
            WorkerLost: a worker died, and that is not tolerated.
            Exception: what a worker raised.
        """
        replies = self.replies(dict.fromkeys(workers, ("update",)), {}, timeout, UPDATE)
        for request in self.tagged([UPDATE]):
            self.cancel(request)
        late = f"applied version {self.channel.version} within {timeout:g} s; they do before their next fragment"
        for failure in self.failures(replies, late, timeout):
            raise failure
        self.raise_losses()

    def fragments(self, min_steps: int, steps_of: Callable[[Any], int], timeout: float) -> list[Request]:
        """Request fragments until there are enough steps; fragments left over by earlier calls count.

        Args:
            min_steps: how many steps are enough; 0: one fragment per worker.
            steps_of: counts the steps of a batch.
            timeout: how long that may take, in seconds.

        Returns:
            The fragments that have arrived in time, in order; the caller closes them.

        Raises:
            WorkerLate: no fragment has arrived in time.
            WorkerLost: a worker was lost, and that is not tolerated.
            Exception: what an env or a policy raised. In all cases other fragments stay for the next call.
        """
        config, wanted = self._config, min_steps or len(self.ids())

        def share(request: Request) -> int:
            if not min_steps:
                return 1
            if request.reply is not None:
                return steps_of(request.purpose.batch)
            return config.get_rollout_fragment_length(request.worker) * config.num_envs_per_env_runner

        def replied() -> list[Request]:
            return [request for request in self.tagged([FRAGMENT]) if request.reply is not None]

        def is_over() -> bool:
            for request in [request for request in self.tagged([FRAGMENT]) if request.answered]:
                self._open_fragment(request)
            while sum(map(share, self.tagged([FRAGMENT]))) < wanted and self._request_fragment():
                pass
            return sum(map(share, replied())) >= wanted

        self.wait_until(is_over, timeout)
        fragments, missing = replied(), self.unanswered([FRAGMENT])
        if sum(map(share, fragments)) < wanted:
            self._set_overdue(missing)
        if not fragments:
            late = tuple(sorted({request.worker for request in missing} or self.ids()))
            message = f"no fragment of workers {list(late)} has arrived within {timeout:g} s (sample_timeout_s)"
            raise WorkerLate(f"{message}; they are delivered later", workers=late, deadline=timeout)
        return sorted(fragments, key=lambda request: (request.worker, request.number))

    def take_batches(self, fragments: Sequence[Request], concat: bool) -> list[Batch]:
        """Copy the batches of fragments for the caller, joined if `concat`; close the fragments."""
        views: list[Batch] = [request.purpose.batch for request in fragments]
        try:
            for part in [part for batch in views for part in batch.as_multi_agent().policy_batches.values()]:
                for name, column in part.items():
                    if any(holds_objects(leaf) for _, leaf in leaves(column)):  # objects may hold arrays that are views
                        part[name] = copy.deepcopy(column)
            return [concat_samples(views)] if concat and len(views) > 1 else [batch.copy() for batch in views]
        finally:
            for request in fragments:
                self.close(request)

    def wait_until_back(self, workers: Sequence[int], timeout: float) -> None:
        """Wait until no worker of the list is coming back any more, or for the timeout."""
        self.wait_until(lambda: all(worker in self.fleet.up or self.is_gone(worker) for worker in workers), timeout)

    def wait_until(self, is_over: Callable[[], bool], timeout: float) -> None:
        """Wait until a condition holds, or for the timeout; check it after every answer and change of workers.

        Raises:
            FleetFailed: too few workers are left, or too many died in a row.
        """
        deadline, remaining = time.monotonic() + timeout, timeout
        while True:
            # before the check: later answers end the wait
            done = {request for request in self.pending if request.ticket.done}
            if is_over() or remaining < 0:
                return
            unanswered = [request for request in self.pending if request not in done]
            self.wait(unanswered, lambda: False, self.fleet.event_count, remaining)
            self._require_few_deaths()
            remaining = deadline - time.monotonic()

    def reply(self, request: Request) -> Reply:
        """Return the outcome of a request that is answered; close the request unless it is a fragment."""
        name, result, error = request.name, None, None
        try:
            if self.settle(request) and request.purpose.tag is not FRAGMENT:
                self.close(request)
                result = request.reply[1]
            error = request.ticket.error  # a lost worker's: exceptions of user code were raised
        except Exception as raised:  # noqa: BLE001  the caller gets it
            error = raised
        error = error and self._error_for_caller(name, error)
        return Reply(name.worker, result, name.life, self.versions[name.worker], request.purpose.tag, error)

    def accept(self, request: Request) -> bool:
        """Open a fragment.

        Raises:
            PayloadLost: its store has lost it.
        """
        if isinstance(request.reply, Received):
            request.purpose.batch = request.reply.open()
            self.frames[request.worker] += request.purpose.batch.env_steps()
        return True

    def is_tolerated(self, error: BaseException | None) -> bool:
        """Return whether an error is the loss of a worker that is not raised."""
        return self.tolerates_losses and isinstance(error, WorkerLost)

    def raise_losses(self) -> None:
        """Raise the first loss that is not tolerated and was not raised yet.

        Raises:
            FleetFailed: too few workers are left, or too many died in a row.
            WorkerLate: a worker was ended because a request took too long.
            WorkerLost: a worker died.
        """
        self.require_enough_workers()
        self._require_few_deaths()
        for name, cause in [*self._unraised_losses.items()]:
            raise self._error_for_caller(name, cause)

    def worker_stats(self, *, is_stopped: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return numbers of all workers together, and of each, as `WorkerSet.stats` shows them; both may be empty."""
        newest, numbers = self.channel.version, dict[int, tuple[int, int, int, int]]()
        for worker, status in self.fleet.statuses().items():
            if worker not in self.removed:
                version = self.versions[worker]
                numbers[worker] = self.frames[worker], status.life, version, max(0, newest - version)
        if not numbers:
            return {}, {}
        aggregate, of_workers = worker_facts(self.fleet, numbers, closed=is_stopped)
        return {"policy_version": newest, **aggregate, "fragments_lost": self.fragments_lost}, of_workers

    def _require_few_deaths(self) -> None:
        """Raise `FleetFailed` if too many workers died in a row."""
        causes, limit = tuple(self._deaths_in_a_row), self._config.num_consecutive_env_runner_failures_tolerance
        if len(causes) > limit:
            message = f"more than num_consecutive_env_runner_failures_tolerance={limit}; the last: {causes[-1]}"
            raise FleetFailed(f"{len(causes)} workers died in a row, {message}", causes=causes)

    def _reply_in_time(self, worker: int, request: Request | None, timeout: float) -> Reply:
        """Return the outcome of a request after the timeout; None: the worker has got no request."""
        if request is not None and request.ticket.done:
            return self.reply(request)
        if request is None and self.is_gone(worker):
            return Reply(worker, None, error=WorkerLost(f"worker {worker} was lost before it was asked", worker=worker))
        problem = f"was not asked: it has not been free for {timeout:g} s"
        if request is not None:
            self._set_overdue([request])
            problem = f"has not answered within {timeout:g} s; fetch_ready_async_reqs(tags='late') has its answer later"
        return Reply(worker, None, error=WorkerLate(f"worker {worker} {problem}", workers=(worker,), deadline=timeout))

    def _set_overdue(self, requests: Iterable[Request]) -> None:
        """Note that the caller has stopped waiting for these requests."""
        for request in requests:
            if not request.purpose.overdue:
                request.purpose.overdue = True
                self._record(request.name, "late", f"{request.ticket.method}() is not waited for any more")

    def _request_fragment(self) -> bool:
        """Request a fragment from the free worker that has given fewest; return whether there is one."""
        fragments = self.tagged([FRAGMENT])
        busy = {request.worker for request in fragments if request.reply is None}
        n_fragments = Counter(request.worker for request in fragments)
        free = [worker for worker in self.free() if worker not in busy]
        if free:
            worker = min(free, key=lambda worker: (n_fragments[worker], worker))
            self.request(worker, "sample", purpose=Purpose(FRAGMENT))
        return bool(free)

    def _open_fragment(self, request: Request) -> None:
        """Open an answer; ignore a lost fragment, and errors of requests from before the last error was raised.

        Raises:
            Exception: what the worker raised.
        """
        error = self.reply(request).error
        if error is None:
            return
        is_lost = isinstance(error, PayloadLost | WorkerLost | WorkerLate)
        if is_lost:
            self.fragments_lost += 1
            self.fleet.process_events()  # the worker may have died since the last look, and must get no request
        is_ignored = self.tolerates_losses if is_lost else request.number <= self._last_ignored
        if not (is_ignored or isinstance(error, PayloadLost)):
            self._last_ignored = self._last_ignored if is_lost else self.last_number
            raise error
        self._record(request.name, "discarded", f"a fragment: {error}")

    def _error_for_caller(self, name: Name, error: BaseException) -> BaseException:
        """Return the error that a caller sees; a loss is not raised a second time."""
        if isinstance(error, WorkerLost):
            self._unraised_losses.pop(name, None)
            if name in self.fleet.late:
                limits = self.fleet.survival
                limit = limits.describe("fragment_timeout_s")
                message = f"{name} was ended: a request took longer than {limit}"
                return WorkerLate(message, workers=(name.worker,), deadline=limits.fragment_timeout_s)
        return error

    def _value(self, ticket: Ticket) -> Any:
        """Return the answer, as `WorkerGroup` does; earlier deaths are no longer in a row."""
        value = super()._value(ticket)
        self._deaths_in_a_row.clear()
        self.versions[ticket.name.worker] = value.head if isinstance(value, Received) else value[0]
        return value

    def _record(self, name: Name, kind: Kind, text: str) -> None:
        self.events.append(Event(time.time(), *name, kind, text))

    def _record_change(self, news: LifeEvent, name: Name, cause: BaseException | None) -> None:
        """Record the death, the replacement or the end of a worker."""
        if cause is not None:
            self.versions[name.worker] = 0
            self._record(name, "hung" if name in self.fleet.late else "died", str(cause))
            self._deaths_in_a_row.append(cause)
            if not self.tolerates_losses:
                self._unraised_losses[name] = cause
        elif news == "given up":
            self._record(name, news, f"worker {name.worker} is not replaced")
        elif name.life:
            self._record(name, "replaced", f"life {name.life} of worker {name.worker} is up")
            self.unreported.append(name.worker)
