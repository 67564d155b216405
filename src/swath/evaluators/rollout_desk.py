"""A handle's side of a `RayEvalWorker`: one rollout asked for, its actor looked after whenever somebody looks.

submit ─▶ Run ─▶ actor ─▶ poll: outcome | not yet
            ▲       │ lost: another actor, weights again, rollout again
            └───────┘ late: the actor is ended, the next submit begins another

It has no thread of its own: deadlines and deaths are acted on by `poll` and `submit`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeGuard
from uuid import uuid4

from swath.errors import Closed, SwathError, WorkerLost
from swath.evaluate.rollout_request import Ask, Manner, Token
from swath.evaluators.tenure import Tenure
from swath.weights.snapshot import Snapshot
from swath.workers.outcome import Error, Outcome
from swath.workers.tickets import Ticket


@dataclass
class Run:
    """A rollout that was asked for.

    Attributes:
        token: its name.
        manner: how it is played.
        weighted: whether weights were submitted with it.
        asked: when.
        ticket: the call that brings it.
        shared: weights that travel with the call.
        losses: how many actors were lost over it.
        doomed: whether it was asked of an actor that had been ended, of which Ray had not told yet.
    """

    token: Token
    manner: Manner
    weighted: bool
    ticket: Ticket
    asked: float = field(default_factory=monotonic)
    shared: Any = None
    losses: int = 0
    doomed: bool = False


class RolloutDesk:
    """Asks for rollouts, and brings their outcomes. Any thread may use it.

    Args:
        tenure: of the actor, which has been begun or found.
    """

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure
        self._asker, self._number = uuid4().hex, 0
        self._run: Run | None = None
        self._weights: Snapshot | None = None
        self._version = 0
        self._lock = threading.RLock()
        self._closed = False

    def __str__(self) -> str:
        """Its state in words."""
        return "closed" if self._closed else f"{self._tenure}{', a rollout is asked for' * (self._run is not None)}"

    def submit(self, weights: Snapshot | None, manner: Manner) -> None:
        """Ask for a rollout in place of the last one.

        Raises:
            Closed: it was shut down.
        """
        with self._lock:
            if self._closed:
                raise Closed("this RayEvalWorker was shut down; make another one")
            self._forget()
            self._number += 1
            if weights is not None:
                self._weights, self._version = weights, self._version + 1
            token = Token(self._asker, self._number)
            run = Run(token, manner, weights is not None, Ticket(self._tenure.actor.name, "rollout"))
            try:
                self._send(run)
            except WorkerLost as loss:
                run.ticket.settle(Error(loss))
            self._run = run
        self._tenure.backend.wake()

    def poll(self, timeout: float | None) -> Any:
        """The outcome of the last rollout, once; `None` if there is none within so many seconds.

        Raises:
            Closed: it was shut down meanwhile.
            BaseException: the outcome is an error.
        """
        until = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                if (run := self._run) is None:
                    return None
                outcome = self._outcome(run)
                if outcome is not None:
                    self._forget()
                    return self._opened(outcome)
                news, due, backend = self._news(run), self._tenure.due(run.asked), self._tenure.backend
            now = monotonic()
            if until is not None and now >= until:
                return None
            first = due if until is None else min(due, until)
            backend.wait(news, max(0.0, first - now), lambda: self._run is not run)
            if self._closed:
                raise Closed("this RayEvalWorker was shut down while its rollout was waited for")

    def close(self, timeout: float) -> None:
        """Close the env in the actor, and end the actor. Twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._forget()
            self._closed = True
        self._tenure.backend.wake()
        self._tenure.dismiss(timeout)
        self._tenure.backend.close()

    def _send(self, run: Run) -> None:
        """Have it played by the actor there is, or by another.

        Raises:
            Closed, WorkerLost: there can be no other.
        """
        tenure, weights = self._tenure, self._weights if run.weighted else None
        tenure.hear()
        if tenure.actor.ended.done:
            tenure.renew()
            weights = self._weights
        backend, actor = tenure.backend, tenure.actor
        run.shared = None if weights is None else backend.share(weights)
        ask = Ask(run.token, run.manner, run.shared, self._version)
        backend.call_aside(actor, "announce", ask.token)
        run.doomed = actor.killed is not None
        run.asked, run.ticket = monotonic(), backend.call(actor, "rollout", ask)

    def _outcome(self, run: Run) -> Outcome | None:
        """What became of it, if anything has; acts on what has happened to the actor."""
        tenure = self._tenure
        tenure.hear()
        refusal, outcome = tenure.actor.ready.outcome, run.ticket.outcome
        if isinstance(refusal, Error) and not isinstance(refusal.exception, WorkerLost):
            tenure.part()
            return refusal
        if isinstance(outcome, Error) and isinstance(outcome.exception, WorkerLost):
            return self._again(run, outcome)
        if monotonic() >= tenure.due(run.asked):
            if outcome is None:
                outcome = Error(tenure.late())
                tenure.part()
        elif self._awaited():
            return None
        return outcome

    def _awaited(self) -> list[Ticket]:
        """What must be known before an outcome is given, whatever comes first.

        Where the actor could not be built, `ready` says why. One that is lost before it has told what it is made of
        could not be begun again.
        """
        return [ticket for ticket in (self._tenure.actor.ready, self._tenure.telling) if _is_open(ticket)]

    def _again(self, run: Run, loss: Error) -> Outcome | None:
        """Have it played by another actor; why not, if so."""
        run.losses += not run.doomed
        if run.losses > self._tenure.retries and not run.doomed:
            return self._tenure.dismissal() or loss
        self._release(run)
        try:
            self._send(run)
        except SwathError as refusal:
            return Error(refusal)
        return None

    def _news(self, run: Run) -> list[Ticket]:
        """What is to be looked at when it is there."""
        awaited, placed = self._awaited(), self._tenure.actor.placed
        rollout = () if run.ticket.done and awaited else (run.ticket,)
        return [*rollout, *awaited, *(() if placed.done else (placed,))]

    def _opened(self, outcome: Outcome) -> Any:
        if isinstance(outcome, Error):
            raise outcome.exception
        numbers = outcome.value if isinstance(outcome.value, dict) else outcome.value.head
        self._version = max(self._version, numbers["policy_version"])
        return outcome.value

    def _forget(self) -> None:
        if self._run is not None:
            self._release(self._run)
        self._run = None

    def _release(self, run: Run) -> None:
        if run.shared is not None:
            run.shared.release()
            run.shared = None


def _is_open(ticket: Ticket | None) -> TypeGuard[Ticket]:
    return ticket is not None and not ticket.done
