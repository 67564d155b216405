"""Evaluations one after another beside whoever asks for them: an inbox, a company of workers, one thread.

    ask ─▶ inbox ─Run─▶ coordination thread: company.perform ─▶ finish ─Publish─▶ show ─▶ readable
    read, wait ◀─────────────────────────────────────────────────────────────────────────┘

The inbox decides, under one lock; nothing of the user's is called while it is held.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from time import monotonic
from typing import Any

from swath.errors import Closed, SwathError, warn
from swath.evaluate.busy import InboxRules
from swath.evaluate.company import Company, Order, Performed
from swath.evaluate.inbox import Counted, Inbox
from swath.evaluate.inbox_events import (
    IS_CLOSED,
    Accepted,
    Asked,
    Cancelled,
    Deliver,
    Drop,
    Event,
    Finished,
    Publish,
    Published,
    Read,
    Refuse,
    Restored,
    Run,
    Skip,
    Stop,
    Supplied,
)
from swath.evaluate.inbox_events import Closed as Closing
from swath.evaluate.parts import Wishes
from swath.evaluate.playing import Cancelled as Stopped
from swath.evaluate.request import EvalRequest
from swath.evaluate.result import EvalResult
from swath.seeds import fresh_root
from swath.weights.snapshot import Snapshot

_log = logging.getLogger("swath")

MANY_WAITING = 16
JOIN_S = 1.0
EXIT_S = 2.0
"""How long the interpreter's end waits for evaluations that nobody shut down."""


@dataclass(frozen=True)
class Brief:
    """What differs from one evaluation to the next.

    Attributes:
        models: weights by model id, the service's own.
        weighted: whether they count as a new set.
    """

    models: Mapping[str, Snapshot] = field(default_factory=dict)
    weighted: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(snapshot.nbytes for snapshot in self.models.values())


@dataclass(frozen=True)
class Ending:
    """What came of an evaluation: a result, or an error."""

    result: EvalResult | None = None
    error: BaseException | None = None

    def value(self) -> EvalResult:
        """The result.

        Raises:
            BaseException: the error.
        """
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@dataclass(frozen=True)
class Plan:
    """What is the same for all evaluations of a service.

    Attributes:
        request: the conditions; step and version are filled in.
        wishes: what is wanted beside the numbers.
        finish: makes the result of what was performed; what it raises is the outcome.
        show: is shown each result before it can be read, and how to get the weights it was made with, by model id; it
            must not raise.
    """

    request: EvalRequest
    wishes: Wishes
    finish: Callable[[Performed, EvalRequest], EvalResult]
    show: Callable[[EvalResult, Callable[[], Mapping[str, Mapping[str, Any]]]], None]


class EvaluationService:
    """Evaluations in order of acceptance. Any thread may use it.

    Args:
        company: plays them; the service's own from now on.
        plan: what is the same for all.
        rules: what askers are told while it is busy.
    """

    def __init__(self, company: Company, plan: Plan, rules: InboxRules) -> None:
        self._company, self._plan = company, plan
        self._changed = threading.Condition()
        self._inbox: Inbox[Brief, Ending] = Inbox(rules)
        self._todo: deque[Run[Brief] | Publish[Brief, Ending]] = deque()
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._stopping: int | None = None
        self._performing = False
        self._retries = 0
        self._warned = False

    @property
    def pending(self) -> bool:
        """Whether an accepted async request has no readable outcome."""
        with self._changed:
            return self._inbox.pending

    @property
    def closed(self) -> bool:
        """Whether it is over."""
        return self._inbox.closed

    def evaluate(self, supply: Callable[[], Brief], step: int | None) -> EvalResult:
        """Ask for an evaluation and wait for its outcome; whatever interrupts that cancels it. See `trigger`.

        Raises:
            Closed: the service is closed, or was meanwhile.
            RuntimeError: called by the thread that would have to bring the outcome.
            BaseException: the outcome is an error.
        """
        self._require_other_thread()
        number = next(self._numbers)
        try:
            self._ask(Asked(number, sync=True), supply, step)
            result = self._outcome(number, None)
        except BaseException:
            self.cancel(number)
            raise
        assert result is not None
        return result

    def trigger(self, supply: Callable[[], Brief], step: int | None) -> bool:
        """Ask for an evaluation.

        Args:
            supply: copies what it needs; called only if the request is admitted, in this thread.
            step: the training step; `None`: the next of the service's count.

        Returns:
            Whether it was accepted; else it was skipped.

        Raises:
            Closed: the service is closed.
            SwathError: it is busy, and its rules say so.
            Exception: what `supply` raised; nothing was asked for then.
        """
        accepted = self._ask(Asked(next(self._numbers)), supply, step)
        self._warn_if_many_wait()
        return accepted

    def wait(self, timeout: float | None = None) -> EvalResult | None:
        """The oldest unread outcome of the async requests.

        Args:
            timeout: in seconds; `None` for none.

        Returns:
            `None` if there is nothing to wait for, or the time is over.

        Raises:
            Closed: the service was closed meanwhile.
            RuntimeError: called by the thread that would have to bring the outcome.
            BaseException: the outcome is an error.
        """
        if timeout is None or timeout > 0:
            self._require_other_thread()
        return self._outcome(None, timeout)

    def _ask(self, asked: Asked, supply: Callable[[], Brief], step: int | None) -> bool:
        if isinstance(self._answer(asked), Skip):
            return False
        try:
            brief = supply()
            self._answer(Supplied(asked.number, brief, step, brief.weighted))
        except BaseException:
            self.cancel(asked.number)
            raise
        return True

    def _require_other_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise SwathError("on_result cannot wait for an evaluation: it would wait for itself; use trigger_eval()")

    def _outcome(self, number: int | None, timeout: float | None) -> EvalResult | None:
        """That of a sync request, or the oldest unread one of the async requests."""
        until = None if timeout is None else monotonic() + timeout
        with self._changed:
            was_open = not self._inbox.closed
            while (found := self._inbox.handle(Read(number))) == []:
                if not (self._inbox.pending if number is None else self._inbox.expects(number)):
                    if self._inbox.closed and (number is not None or was_open):
                        raise Closed(IS_CLOSED)
                    return None
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
        assert isinstance(found[0], Deliver)
        return found[0].outcome.value()

    def cancel(self, number: int | None = None) -> int:
        """Nobody wants this request, or `None`: any async one, any more; how many are dropped or stopped."""
        with self._changed:
            return sum(isinstance(each, Drop | Stop) for each in self._handle(Cancelled(number)))

    def counts(self) -> dict[str, int]:
        """What has happened so far."""
        kinds: tuple[Counted, ...] = ("accepted", "completed", "errors", "skipped", "superseded", "cancelled")
        with self._changed:
            inbox = self._inbox
            return {
                **{kind: inbox.count(kind) for kind in kinds},
                "retries": self._retries,
                "restarts": self._company.restarts,
                "dropped_results": inbox.count("dropped_results"),
                "queued": inbox.queued,
                "unread": inbox.unread,
                "episodes_done": self._company.complete if self._performing else 0,
            }

    def running(self) -> Accepted[Brief] | None:
        """What is being evaluated."""
        return self._inbox.running

    def state(self) -> tuple[int, int]:
        """The count of steps and that of versions, to go on from.

        Raises:
            SwathError: there is work that is pending, queued or unread.
        """
        with self._changed:
            if not self._inbox.at_rest:
                raise Refuse("at work").error
            return self._inbox.step_counter, self._inbox.policy_version

    def restore(self, step_counter: int, policy_version: int) -> None:
        """Go on from these counts.

        Raises:
            SwathError: there is work that is pending, queued or unread.
        """
        self._answer(Restored(step_counter, policy_version))

    def close(self, timeout: float) -> None:
        """Refuse new requests, stop what is running, wake those who wait, end workers and thread. Twice is fine."""
        atexit.unregister(self.close)
        until = monotonic() + timeout
        with self._changed:
            first = not self._inbox.closed
            self._handle(Closing())
            unread, thread = self._inbox.unread, self._thread
            mine = threading.current_thread() is thread
            if not mine and not self._company.starting:
                self._changed.wait_for(lambda: not self._performing, timeout)
        for error in self._company.close(max(0.0, until - monotonic())):
            _log.error("an env of an evaluation raised when it was closed", exc_info=error)
        if thread is not None and not mine:
            thread.join(max(0.0, until - monotonic()) + JOIN_S)
        alive = [thread.name] if thread is not None and not mine and thread.is_alive() else []
        if first and (stuck := [*self._company.left_behind, *alive]):
            warn(f"threads of an evaluator are stuck in code of the user and are left behind: {', '.join(stuck)}")
        if first and unread:
            _log.info("%d outcomes of evaluations are unread; poll() still gives them", unread)

    def _answer(self, event: Event[Brief, Ending]) -> object:
        """What the inbox says first; a refusal is raised."""
        with self._changed:
            instructions = self._handle(event)
        first = instructions[0] if instructions else None
        if isinstance(first, Refuse):
            raise first.error
        return first

    def _handle(self, event: Event[Brief, Ending]) -> list[object]:
        """Tell the inbox, and take note of what it wants done. Under the lock."""
        instructions = self._inbox.handle(event)
        for instruction in instructions:
            match instruction:
                case Run() | Publish():
                    self._todo.append(instruction)
                    self._started()
                case Stop(number):
                    self._stopping = number
                    self._company.wake()
        self._changed.notify_all()
        return [*instructions]

    def _started(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._coordinate, name="swath eval", daemon=True)
            self._thread.start()
            atexit.register(self.close, EXIT_S)  # a thread that is in torch then aborts the interpreter

    def _warn_if_many_wait(self) -> None:
        with self._changed:
            waiting = [each.request.nbytes for each in self._inbox.waiting]
            if len(waiting) < MANY_WAITING or self._warned:
                return
            self._warned = True
        warn(
            f"{len(waiting)} evaluations wait, and their weights take {sum(waiting):,} bytes; trigger fewer, give the "
            "evaluator more workers, or choose busy_policy='latest'"
        )

    def _coordinate(self) -> None:
        """What the thread does until the service is closed."""
        while (job := self._next()) is not None:
            if isinstance(job, Run):
                ending = self._performed(job.accepted)
                with self._changed:
                    self._performing = False
                    self._handle(Finished(job.accepted.number, ending))
            else:
                self._publish(job)

    def _next(self) -> Run[Brief] | Publish[Brief, Ending] | None:
        """What is to be done; outcomes are shown before the next evaluation begins."""
        with self._changed:
            self._changed.wait_for(lambda: self._todo or self._inbox.closed)
            if not self._todo:
                return None
            job = next((each for each in self._todo if isinstance(each, Publish)), self._todo[0])
            self._todo.remove(job)
            self._performing = isinstance(job, Run)
            return job

    def _performed(self, accepted: Accepted[Brief]) -> Ending:
        brief, plan = accepted.request, self._plan
        seed = fresh_root() if plan.request.seed is None else plan.request.seed
        request = replace(plan.request, step=accepted.step, policy_version=accepted.policy_version, seed=seed)
        order = Order(accepted.number, request, brief.models, plan.wishes)
        try:
            performed = self._company.perform(order, lambda: self._stopping == accepted.number)
            self._retries += performed.facts.retries
            return Ending(plan.finish(performed, request))
        except (Stopped, Closed) as error:
            return Ending(error=error)
        except BaseException as error:  # noqa: BLE001  it is the outcome, and raised where that is read
            _log.error("the evaluation of step %d failed: %s: %s", accepted.step, type(error).__name__, error)
            return Ending(error=error)

    def _publish(self, job: Publish[Brief, Ending]) -> None:
        ending = job.outcome
        if ending.result is not None:
            try:
                self._plan.show(ending.result, self._company.models)
            except BaseException:  # noqa: BLE001  who waits for the result is not to wait for ever
                _log.exception("the result of step %d could not be shown; it stands", ending.result.step)
        with self._changed:
            self._handle(Published(job.accepted.number, ending, failed=ending.error is not None))
