"""The requests of one evaluator: which is next, what a busy evaluator answers, which outcomes are unread.

add ──▶ live: the first one runs, the others wait ──show──▶ shown ──finish──▶ unread (async), or the outcome (sync)

No thread, no clock, no I/O: whoever uses it holds a lock meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

from swath.errors import Closed, SwathError
from swath.weights.snapshot import Snapshot

BusyPolicy = Literal["error", "queue", "skip", "latest"]

MOST_UNREAD = 1024  # outcomes that are kept

_PENDING = (
    "Evaluation already pending; read it first with poll() or wait(), or choose what a busy evaluator does: "
    "busy_policy='queue' appends, 'skip' returns False, 'latest' replaces the one that waits"
)


@dataclass(eq=False)
class QueuedEvaluation:
    """What is to be evaluated.

    Attributes:
        step: as given; `None` until it is accepted and counted.
        sync: whether a caller is blocked until its outcome is there.
        models: weights by model id, the service's own.
        weighted: whether they count as a new set.
        manner: what else its `EvalRequest` has, by name.
        policy_version: how many sets of weights were accepted so far, its own included.
        cancelled: whether nobody wants it any more; it has no outcome then.
        shown: whether its outcome is being shown, or was.
        outcome: the result, or what was raised.
    """

    step: int | None = None
    sync: bool = False
    models: Mapping[str, Snapshot] = field(default_factory=dict)
    weighted: bool = False
    manner: Mapping[str, Any] = field(default_factory=dict)
    policy_version: int = 0
    cancelled: bool = False
    shown: bool = False
    outcome: Future[Any] = field(default_factory=Future)


class EvalQueue:
    """Requests from being asked to being read. They run one at a time, in the order in which they were accepted.

    Args:
        busy_policy: what an async asker is answered while an async request is pending.
        reported: whether every result is shown to `on_result`, so that the oldest unread ones can be dropped.

    Attributes:
        counts: how often what has happened.
        live: accepted and not finished, the oldest first; that one the workers have, or it is being shown.
        unread: outcomes of async requests, the oldest first.
        step_counter: the step of the next request that has none of its own.
        policy_version: how many sets of weights were accepted.
        closed: whether it is over.

    Raises:
        ValueError: there is no such policy.
    """

    def __init__(self, busy_policy: BusyPolicy = "error", *, reported: bool = False) -> None:
        choices = get_args(BusyPolicy)
        if busy_policy not in choices:
            raise ValueError(f"Unknown busy_policy {busy_policy!r}; choose one of {choices}")
        self._policy, self._reported = busy_policy, reported
        names = ("accepted", "completed", "errors", "skipped", "superseded", "cancelled", "dropped_results")
        self.counts = dict.fromkeys(names, 0)
        self.live: list[QueuedEvaluation] = []
        self.unread: deque[Future[Any]] = deque()
        self.step_counter = self.policy_version = 0
        self.closed = False

    @property
    def waiting(self) -> list[QueuedEvaluation]:
        """Those behind the one that runs."""
        return self.live[1:]

    @property
    def pending(self) -> bool:
        """Whether an accepted async request has no readable outcome, but will have one."""
        return not self.closed and any(not (request.sync or request.cancelled) for request in self.live)

    def admits(self, *, sync: bool) -> bool:
        """Whether one more request would be accepted; else it is skipped.

        Raises:
            Closed: it is over.
            SwathError: it is busy, or too many outcomes are unread.
        """
        if self.closed:
            raise Closed("the evaluator was shut down; build another one")
        if sync:
            return True
        if self.pending and self._policy == "error":
            raise SwathError(_PENDING)
        if self.pending and self._policy == "skip":
            self.counts["skipped"] += 1
            return False
        if not self._reported and len(self.unread) >= MOST_UNREAD:
            raise SwathError(f"{len(self.unread)} outcomes are unread; read them with poll() or wait() first")
        return True

    def add(self, request: QueuedEvaluation) -> bool:
        """Accept a request, and give it a step and a version; false if it is skipped.

        Raises:
            Closed, SwathError: see `admits`.
        """
        if not self.admits(sync=request.sync):
            return False
        if request.step is None:
            request.step, self.step_counter = self.step_counter, self.step_counter + 1
        self.policy_version += request.weighted
        request.policy_version = self.policy_version
        self.counts["accepted"] += 1
        self.live.append(request)
        if self._policy == "latest" and not request.sync:
            for each, following in pairwise(self.waiting):
                if not each.sync:  # it is replaced, and its weights count as sent
                    following.models = {**each.models, **following.models}
                    self.live.remove(each)
                    self.counts["superseded"] += 1
        return True

    def show(self, request: QueuedEvaluation) -> bool:
        """The workers are done with what was running: whether its outcome is wanted. It cannot be cancelled now."""
        request.shown = True
        return not request.cancelled

    def finish(self, request: QueuedEvaluation, result: Any = None, error: BaseException | None = None) -> None:
        """What was running has been shown: its outcome can be read, and the next one runs."""
        self.live.remove(request)
        if request.cancelled:
            return
        self.counts["completed" if error is None else "errors"] += 1
        if not request.outcome.done():  # else the caller was woken when this was closed
            request.outcome.set_result(result) if error is None else request.outcome.set_exception(error)
        if not request.sync:
            self.unread.append(request.outcome)
        if self._reported and len(self.unread) > MOST_UNREAD:
            # The oldest result goes, which `on_result` has seen; errors stay as long as possible.
            del self.unread[next((place for place, each in enumerate(self.unread) if each.exception() is None), 0)]
            self.counts["dropped_results"] += 1

    def cancel(self, *requests: QueuedEvaluation) -> int:
        """Nobody wants these any more, or any async one if none is named; how many were dropped or are to stop."""
        wanted = [each for each in self.live if not (each.shown or each.cancelled)]
        gone = [each for each in wanted if (each in requests if requests else not each.sync)]
        for request in gone:
            request.cancelled = True
        self.live = [each for each in self.live if each is self.live[0] or not each.cancelled]
        self.counts["cancelled"] += len(gone)
        return len(gone)

    def close(self) -> None:
        """Accept nothing more, and drop what waits or runs. What is unread, or being shown, can still be read.

        Whoever is blocked is woken.
        """
        for request in self.live:
            if request.sync and not (request.cancelled or request.outcome.done()):
                request.outcome.set_exception(Closed("the evaluator was shut down while its evaluation was waited for"))
        self.cancel(*self.live)
        self.closed = True
