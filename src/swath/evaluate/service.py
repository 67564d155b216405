"""Evaluations one after another beside whoever asks for them: an inbox, a company of workers, one thread.

    ask ─▶ inbox ─Run─▶ coordination thread: company.perform ─▶ finish ─Publish─▶ show ─▶ readable
    read, wait ◀─────────────────────────────────────────────────────────────────────────┘

The inbox decides, under one lock; nothing of the user's is called while it is held. An exception may come at any point
in the threads of callers (an interrupt), so what the coordination thread does next follows from the inbox alone.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from math import inf
from time import monotonic
from weakref import WeakSet

from swath.errors import Closed, SwathError, warn
from swath.evaluate.busy import InboxRules
from swath.evaluate.company import Company, Order
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
    Skip,
    Stop,
    Supplied,
)
from swath.evaluate.inbox_events import Closed as Closing
from swath.evaluate.plan import Brief, Ending, Plan
from swath.evaluate.playing import Cancelled as Stopped
from swath.evaluate.result import EvalResult
from swath.evaluate.telling import tell
from swath.options import seconds
from swath.seeds import fresh_root
from swath.workers.renewed import SIGNALS_S, join, renewed

_log = logging.getLogger("swath")

MANY_WAITING = 16
JOIN_S = 1.0
EXIT_S = 2.0
"""How long the interpreter's end waits for evaluations that nobody shut down."""


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
        self._replaces = rules.busy_policy == "latest"
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._stopping: int | None = None
        self._performing = False
        self._warned = False
        _OPEN.add(self)

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
        wanted = None if timeout is None else seconds("timeout", timeout)
        if wanted != 0:
            self._require_other_thread()
        return self._outcome(None, wanted)

    def _ask(self, asked: Asked, supply: Callable[[], Brief], step: int | None) -> bool:
        try:
            if isinstance(self._answer(asked), Skip):
                return False
            brief = supply()
            self._start()
            self._supply(asked, brief, step)
        except BaseException:
            self.cancel(asked.number)
            raise
        return True

    def _supply(self, asked: Asked, brief: Brief, step: int | None) -> None:
        """The request is complete. Weights of one that it replaces count as sent: its own may be for other models."""
        with self._changed:
            if self._replaces and not asked.sync:
                sent = Brief()
                for each in self._inbox.waiting:
                    sent = sent.without(each.request) if each.sync else each.request.in_place_of(sent)
                brief = brief.in_place_of(sent)
            self._answer(Supplied(asked.number, brief, step, brief.weighted))

    def _require_other_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise SwathError("on_result cannot wait for an evaluation: it would wait for itself; use trigger_eval()")

    def _outcome(self, number: int | None, timeout: float | None) -> EvalResult | None:
        """That of a sync request, or the oldest unread one of the async requests."""
        until = inf if timeout is None else monotonic() + timeout
        with self._changed:
            was_open = not self._inbox.closed
            while (found := self._inbox.handle(Read(number))) == []:
                if not (self._inbox.pending if number is None else self._inbox.expects(number)):
                    if self._inbox.closed and (number is not None or was_open):
                        raise Closed(IS_CLOSED)
                    return None
                if (left := until - monotonic()) <= 0:
                    return None
                self._changed.wait(min(left, SIGNALS_S))
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
                "retries": self._company.retries,
                "restarts": self._company.restarts,
                "dropped_results": inbox.count("dropped_results"),
                "queued": inbox.queued,
                "unread": inbox.unread,
                "episodes_done": self._company.complete if self._performing else 0,
            }

    def running(self) -> tuple[int, int, int] | None:
        """What is being evaluated: its step, episodes that are played, and of how many."""
        with self._changed:
            if (running := self._inbox.running) is None:
                return None
            played = (self._company.complete, self._company.wanted) if self._performing else (0, 0)
            return running.step, played[0], max(played[1], self._plan.request.stop.num_trajectories)

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
        """Refuse new requests, stop what is running, wake those who wait, end workers and thread. Twice is fine.

        Nothing in a process that was forked: the workers are those of the first.

        Raises:
            ValueError: `timeout` is not a finite number of seconds.
        """
        if self not in _OPEN:
            return
        until = monotonic() + (timeout := seconds("timeout", timeout))
        atexit.unregister(self.close)
        with self._changed:
            first = not self._inbox.closed
            self._handle(Closing())
            unread = self._inbox.unread
            thread = self._thread if self._thread is not None and self._thread.is_alive() else None
            mine = threading.current_thread() is thread
            if not mine and not self._company.starting:
                renewed(lambda left: self._changed.wait_for(lambda: not self._performing, left), timeout)
        for error in self._company.close(max(0.0, until - monotonic())):
            tell(_log.error, "an env of an evaluation raised when it was closed", error=error)
        if thread is not None and not mine:
            join(thread, max(0.0, until - monotonic()) + JOIN_S)
        alive = [thread.name] if thread is not None and not mine and thread.is_alive() else []
        if first and (stuck := [*self._company.left_behind, *alive]):
            warn(f"threads of an evaluator are stuck in code of the user and are left behind: {', '.join(stuck)}")
        if first and unread:
            tell(_log.info, "%d outcomes of evaluations are unread; poll() still gives them", unread)

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
            if isinstance(instruction, Stop):
                self._stopping = instruction.number
                self._company.wake()
        self._changed.notify_all()
        return [*instructions]

    def _start(self) -> None:
        """Have the thread run, before there is anything for it to do: where there can be none, nothing was asked."""
        with self._changed:
            if self._inbox.closed or (self._thread is not None and self._thread.is_alive()):
                return
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
        """What the thread does until the service is closed; outcomes are shown before the next evaluation begins."""
        while (accepted := self._next()) is not None:
            ending = self._performed(accepted)
            with self._changed:
                self._performing = False
                shown = [each for each in self._handle(Finished(accepted.number, ending)) if isinstance(each, Publish)]
            if shown:
                self._publish(accepted.number, ending)

    def _next(self) -> Accepted[Brief] | None:
        """What is to be evaluated."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox.running is not None or self._inbox.closed)
            self._performing = self._inbox.running is not None
            return self._inbox.running

    def _performed(self, accepted: Accepted[Brief]) -> Ending:
        """What came of it, be it that everything is raised."""
        brief, plan = accepted.request, self._plan
        try:
            seed = fresh_root() if plan.request.seed is None else plan.request.seed
            request = replace(plan.request, step=accepted.step, policy_version=accepted.policy_version, seed=seed)
            order = Order(accepted.number, request, brief.models, plan.wishes)
            performed = self._company.perform(order, lambda: self._stopping == accepted.number)
            return Ending(plan.finish(performed, request))
        except BaseException as error:  # noqa: BLE001  it is the outcome, and raised where that is read
            if not isinstance(error, Stopped | Closed):
                why = " ".join(f"{type(error).__name__}: {error}".split())
                tell(_log.error, "the evaluation of step %d failed: %s", accepted.step, why)
            return Ending(error=error)

    def _publish(self, number: int, ending: Ending) -> None:
        if ending.result is not None:
            try:
                self._plan.show(ending.result, self._company.models)
            except BaseException as error:  # noqa: BLE001  who waits for the result is not to wait for ever
                said = "the result of step %d could not be shown; it stands"
                tell(_log.error, said, ending.result.step, error=error)
        with self._changed:
            self._handle(Published(number, ending, failed=ending.error is not None))

    def _forked(self) -> None:
        """In the child of a fork: neither thread nor workers are its own, and whoever holds the lock is not here."""
        self._changed = threading.Condition()
        atexit.unregister(self.close)
        self._inbox.handle(Closing())


_OPEN: WeakSet[EvaluationService] = WeakSet()
"""Services of this process."""


def _leave_to_the_parent() -> None:
    for service in list(_OPEN):
        service._forked()  # noqa: SLF001  nobody else is to do this
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
