"""The requests of one evaluator: their order, the answers of a busy evaluator, the unread outcomes.

add ──▶ active: the first one runs, the others wait ──mark_played──▶ finish ──▶ unread (async), or the outcome (sync)

No thread, no clock, no I/O. The caller holds a lock around every method.
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

MAX_UNREAD = 1024

_PENDING = (
    "Evaluation already pending; read it first with poll() or wait(), or choose what a busy evaluator does: "
    "busy_policy='queue' appends, 'skip' returns False, 'latest' replaces the one that waits"
)


@dataclass(eq=False)
class QueuedEvaluation:
    """One request of a driver.

    Attributes:
        step: the training step; `None` until the queue accepts the request and counts it.
        sync: whether a caller blocks until the outcome is set.
        models: weights by model id, which the service owns.
        has_new_weights: whether the weights count as a new set.
        fetch_unread: whether to fetch the unread result of a shared worker, instead of playing episodes.
        request_fields: further fields of its `EvalRequest`, by name.
        policy_version: number of weight sets accepted so far, including this one.
        cancelled: whether the request was cancelled; it gets no outcome then.
        played: whether the workers have played it, so that it cannot be cancelled any more.
        outcome: the result, or the exception.
    """

    step: int | None = None
    sync: bool = False
    models: Mapping[str, Snapshot] = field(default_factory=dict)
    has_new_weights: bool = False
    fetch_unread: bool = False
    request_fields: Mapping[str, Any] = field(default_factory=dict)
    policy_version: int = 0
    cancelled: bool = False
    played: bool = False
    outcome: Future[Any] = field(default_factory=Future)


class EvalQueue:
    """Requests from their arrival until their outcomes are read. They run one at a time, in the order of acceptance.

    Args:
        busy_policy: the answer to an async request while another one is pending.
        drop_oldest: whether to drop the oldest results when too many are unread, instead of refusing requests.

    Attributes:
        counts: number of events by name.
        active: accepted and unfinished requests, the oldest first; the workers play that one.
        unread: outcomes of async requests, the oldest first.
        step_counter: the step of the next request without a step.
        policy_version: number of weight sets accepted so far; every other version of an evaluator is a copy of it.
        closed: whether the queue is closed.

    Raises:
        ValueError: the busy policy is unknown.
    """

    def __init__(self, busy_policy: BusyPolicy = "error", *, drop_oldest: bool = False) -> None:
        choices = get_args(BusyPolicy)
        if busy_policy not in choices:
            raise ValueError(f"Unknown busy_policy {busy_policy!r}; choose one of {choices}")
        self._policy, self._drop_oldest = busy_policy, drop_oldest
        names = ("accepted", "completed", "errors", "skipped", "superseded", "cancelled", "dropped_results")
        self.counts = dict.fromkeys(names, 0)
        self.active: list[QueuedEvaluation] = []
        self.unread: deque[Future[Any]] = deque()
        self.step_counter = self.policy_version = 0
        self.closed = False

    @property
    def waiting(self) -> list[QueuedEvaluation]:
        """Return the requests behind the running one."""
        return self.active[1:]

    @property
    def pending(self) -> bool:
        """Tell whether the outcome of an accepted async request is still to come."""
        return not self.closed and any(not (request.sync or request.cancelled) for request in self.active)

    def admits(self, *, sync: bool) -> bool:
        """Tell whether the queue would accept another request; otherwise it skips the request.

        Raises:
            Closed: the queue is closed.
            SwathError: the queue is busy, or too many outcomes are unread.
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
        if not self._drop_oldest and len(self.unread) >= MAX_UNREAD:
            raise SwathError(f"{len(self.unread)} outcomes are unread; read them with poll() or wait() first")
        return True

    def add(self, request: QueuedEvaluation) -> bool:
        """Accept a request, and set its step and version; return false if it is skipped.

        Raises:
            Closed, SwathError: see `admits`.
        """
        if not self.admits(sync=request.sync):
            return False
        if request.step is None:
            request.step, self.step_counter = self.step_counter, self.step_counter + 1
        self.policy_version += request.has_new_weights
        request.policy_version = self.policy_version
        self.counts["accepted"] += 1
        self.active.append(request)
        if self._policy == "latest" and not request.sync:
            for older, newer in pairwise(self.waiting):
                if not older.sync:  # the newer request replaces it, and inherits its weights
                    newer.models = {**older.models, **newer.models}
                    self.active.remove(older)
                    self.counts["superseded"] += 1
        return True

    def mark_played(self, request: QueuedEvaluation) -> bool:
        """Note that the workers have played the running request; tell whether its outcome is to be delivered."""
        request.played = True
        return not request.cancelled

    def finish(self, request: QueuedEvaluation, result: Any = None, error: BaseException | None = None) -> None:
        """Set the outcome of the running request and start the next one."""
        self.active.remove(request)
        if request.cancelled:
            return
        self.counts["completed" if error is None else "errors"] += 1
        if not request.outcome.done():  # `close` may have set it
            request.outcome.set_result(result) if error is None else request.outcome.set_exception(error)
        if not request.sync:
            self.unread.append(request.outcome)
        if self._drop_oldest and len(self.unread) > MAX_UNREAD:
            # `on_result` has received every result; errors stay as long as possible.
            del self.unread[next((i for i, outcome in enumerate(self.unread) if outcome.exception() is None), 0)]
            self.counts["dropped_results"] += 1

    def cancel(self, *requests: QueuedEvaluation) -> int:
        """Cancel these requests, or all async ones if none is named; return how many were dropped or will stop."""
        cancelled = [
            request
            for request in self.active
            if not (request.played or request.cancelled) and (request in requests if requests else not request.sync)
        ]
        for request in cancelled:
            request.cancelled = True
        self.active = [request for request in self.active if request is self.active[0] or not request.cancelled]
        self.counts["cancelled"] += len(cancelled)
        return len(cancelled)

    def close(self) -> None:
        """Refuse new requests, drop the waiting and the running ones, and wake blocked callers.

        Unread outcomes and those being delivered can still be read.
        """
        for request in self.active:
            if request.sync and not (request.cancelled or request.outcome.done()):
                request.outcome.set_exception(Closed("the evaluator was shut down while its evaluation was waited for"))
        self.cancel(*self.active)
        self.closed = True
