"""Which evaluation is next, what a busy evaluator answers, and who reads which outcome.

Asked ──Admit──▶ admitted ─Supplied─▶ waiting ──Run──▶ running ─Finished─▶ shown ─Published─▶ unread ─Read─▶
      └▶ Refuse, Skip                    └▶ Supersede, Drop └▶ Stop         Publish            Wake     Deliver

Pure: events in, instructions out; no thread, no clock, no I/O. One thread at a time: its user holds a lock meanwhile.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import Generic, Literal, TypeAlias

from swath.evaluate.busy import InboxRules
from swath.evaluate.inbox_events import (
    Accept,
    Accepted,
    Admit,
    Asked,
    Cancelled,
    Closed,
    Drop,
    Event,
    Finished,
    Instruction,
    Outcome,
    Published,
    Read,
    Refuse,
    Request,
    Restored,
    Run,
    Skip,
    Stop,
    Supersede,
    Supplied,
    Wake,
)
from swath.evaluate.outbox import Outbox

Counted: TypeAlias = Literal["accepted", "completed", "errors", "skipped", "superseded", "cancelled", "dropped_results"]


class Inbox(Generic[Request, Outcome]):
    """The requests of one evaluator, from being asked to being read.

    A request that was accepted has exactly one outcome, or counts as superseded or cancelled. Requests of both kinds
    run one at a time, in the order they were accepted in. What is let go of is not referred to any more.

    Args:
        rules: how it treats its askers.

    Attributes:
        step_counter: the step of the next request that has none of its own.
        policy_version: how many sets of weights were accepted.
        running: the request that the workers have, be it that they are to stop.
        closed: whether it is over.
    """

    def __init__(self, rules: InboxRules | None = None) -> None:
        self._rules = rules or InboxRules()
        self._admitted: dict[int, bool] = {}  # by number: whether it is sync
        self._waiting: OrderedDict[int, Accepted[Request]] = OrderedDict()
        self._outbox: Outbox[Request, Outcome] = Outbox(self._rules)
        self._pending: set[int] = set()  # async requests whose outcome is to come
        self._callers: set[int] = set()  # sync ones
        self._counts: Counter[Counted] = Counter()
        self.step_counter = 0
        self.policy_version = 0
        self.running: Accepted[Request] | None = None
        self.closed = False

    @property
    def pending(self) -> bool:
        """Whether an accepted async request has no readable outcome, but will have one."""
        return bool(self._pending) and not self.closed

    @property
    def queued(self) -> int:
        """How many requests wait, of both kinds."""
        return len(self._waiting)

    @property
    def waiting(self) -> Collection[Accepted[Request]]:
        """Requests that wait, the oldest first."""
        return self._waiting.values()

    @property
    def unread(self) -> int:
        """How many outcomes of async requests can be read."""
        return self._outbox.unread

    @property
    def at_rest(self) -> bool:
        """Whether no request is on its way and no outcome unread."""
        return self._outbox.is_empty and not (self._admitted or self._pending or self._callers)

    def count(self, what: Counted) -> int:
        """How often this has happened."""
        return self._outbox.dropped if what == "dropped_results" else self._counts[what]

    def expects(self, number: int) -> bool:
        """Whether this request was accepted and its outcome is still to come."""
        return number in self._pending or number in self._callers

    def handle(self, event: Event[Request, Outcome]) -> list[Instruction[Request, Outcome]]:
        """What is to be done now, in this order. News of requests that are over already change nothing.

        Raises:
            KeyError: a request is supplied that was not admitted.
        """
        done: list[Instruction[Request, Outcome]]
        match event:
            case Asked():
                done = [self._answer(event)]
            case Supplied():
                done = self._supplied(event)
            case Finished():
                done = self._finished(event)
            case Published():
                done = self._published(event)
            case Read():
                done = [*self._outbox.read(event.number)]
            case Cancelled():
                done = [*self._cancelled(event.number)]
            case Restored():
                done = [*self._restored(event)]
            case Closed():
                done = [*self._closed()]
        return done

    def _answer(self, asked: Asked) -> Admit | Refuse | Skip:
        objection = self._objection(asked)
        if objection is None:
            self._admitted[asked.number] = asked.sync
            return Admit(asked.number)
        self._counts["skipped"] += isinstance(objection, Skip)
        return objection

    def _objection(self, asked: Asked) -> Refuse | Skip | None:
        if self.closed:
            return Refuse("closed")
        if asked.sync:
            return None
        copying = not all(self._admitted.values())  # an async request that will be pending in a moment
        return self._rules.objection(busy=self.pending or copying, unread=self.unread)

    def _supplied(self, supplied: Supplied[Request]) -> list[Instruction[Request, Outcome]]:
        if self.closed:
            return [Refuse("closed")]
        accepted = self._accepted(supplied, sync=self._admitted.pop(supplied.number))
        replaced = self._replaced() if not accepted.sync and self._rules.busy_policy == "latest" else []
        self._waiting[accepted.number] = accepted
        (self._callers if accepted.sync else self._pending).add(accepted.number)
        return [Accept(accepted), *replaced, *self._next()]

    def _accepted(self, supplied: Supplied[Request], *, sync: bool) -> Accepted[Request]:
        step = supplied.step
        if step is None:
            step, self.step_counter = self.step_counter, self.step_counter + 1
        self.policy_version += supplied.weighted
        self._counts["accepted"] += 1
        return Accepted(supplied.number, sync, supplied.request, step, self.policy_version)

    def _replaced(self) -> list[Supersede]:
        numbers = [number for number in self._waiting if number in self._pending]
        for number in numbers:
            self._forget(number)
        self._counts["superseded"] += len(numbers)
        return [Supersede(number) for number in numbers]

    def _next(self) -> list[Run[Request]]:
        """While an outcome is shown none begins, so that the newest can still take the place of the one that waits."""
        if self.running is not None or self._outbox.showing or not self._waiting:
            return []
        self.running = self._waiting.popitem(last=False)[1]
        return [Run(self.running)]

    def _finished(self, finished: Finished[Outcome]) -> list[Instruction[Request, Outcome]]:
        done = self.running
        if done is None or done.number != finished.number:
            return []
        self.running = None
        return [self._outbox.take(done, finished.outcome)] if self.expects(done.number) else [*self._next()]

    def _published(self, published: Published[Outcome]) -> list[Instruction[Request, Outcome]]:
        accepted = self._outbox.shown(published.number)
        if accepted is None:
            return []
        self._counts["errors" if published.failed else "completed"] += 1
        if self.expects(accepted.number):
            self._outbox.keep(published, sync=accepted.sync)
        self._forget(accepted.number)
        return [Wake(), *self._next()]

    def _cancelled(self, number: int | None) -> list[Drop | Stop | Wake]:
        if number is None:
            return self._let_go_of(each for each in self._before_outcome() if each in self._pending)
        self._admitted.pop(number, None)
        self._outbox.forget(number)
        gone = self._let_go_of(each for each in self._before_outcome() if each == number)
        self._callers.discard(number)  # whose outcome is being shown: nobody will read it
        return gone

    def _before_outcome(self) -> list[int]:
        """All that wait or run, but for one that is to stop."""
        running = [self.running.number] if self.running and self.expects(self.running.number) else []
        return [*self._waiting, *running]

    def _let_go_of(self, numbers: Iterable[int]) -> list[Drop | Stop | Wake]:
        gone = [Drop(number) if number in self._waiting else Stop(number) for number in numbers]
        for one in gone:
            self._forget(one.number)
        self._counts["cancelled"] += len(gone)
        return [*gone, Wake()] if gone else []

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)
        self._pending.discard(number)
        self._callers.discard(number)

    def _restored(self, restored: Restored) -> list[Refuse]:
        if not self.at_rest:
            return [Refuse("at work")]
        self.step_counter, self.policy_version = restored.step_counter, restored.policy_version
        return []

    def _closed(self) -> list[Drop | Stop | Wake]:
        """What is being shown will be readable, though it is not pending any more; blocked callers leave without it."""
        gone = self._let_go_of(self._before_outcome())
        self._admitted.clear()
        self._callers.clear()
        self.closed = True
        return gone or [Wake()]
