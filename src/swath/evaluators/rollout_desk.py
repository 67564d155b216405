"""A handle's side of a `RayEvalWorker`: one rollout asked for, its actor looked after whenever somebody looks.

    submit ─▶ Run ─▶ actor ─▶ poll: outcome | not yet
                ▲       │ lost: another actor, weights again, rollout again
                └───────┘ late: the actor is ended, the next submit begins another

No thread of its own: deadlines and deaths are acted on by `poll` and `submit`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import cloudpickle

from swath.errors import Closed, PlacementFailed, SwathError, WorkerLate, WorkerLost
from swath.evaluate.rollout_request import Ask, Manner, Patience, Recipe, Registration, Token
from swath.evaluate.soloist import Soloist
from swath.weights.snapshot import Snapshot
from swath.workers.base import Job
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.ray.handle import RayHandle
from swath.workers.ray.lasting import LastingBackend
from swath.workers.tickets import Name, Ticket

PUBLIC = ("announce", "recipe")
"""Methods by which an actor shows of what kind it is."""

_KILL_S = 2.0


@dataclass
class Run:
    """A rollout that was asked for.

    Attributes:
        manner: how it is played.
        weighted: whether weights were submitted with it.
        asked: when.
        ticket: the call that brings it.
        shared: weights that travel with the call.
        losses: how many actors were lost over it.
    """

    manner: Manner
    weighted: bool
    asked: float = field(default_factory=monotonic)
    ticket: Ticket | None = None
    shared: Any = None
    losses: int = 0


class RolloutDesk:
    """Asks for rollouts, and brings their outcomes. Any thread may use it.

    Args:
        recipe: what the actor is made of; `None` until it tells.
        registration: under which it is found.

    Raises:
        ValueError: an option that Ray, or this library, does not take.
        TypeError: what makes env or policy cannot be pickled.
    """

    def __init__(self, recipe: Recipe | None, registration: Registration | None) -> None:
        self._recipe, self._registration = recipe, registration
        self._backend = LastingBackend()
        self._asker, self._number = uuid4().hex, 0
        self._lives = 0
        self._actor: RayHandle | None = None
        self._told: Ticket | None = None
        self._began = monotonic()
        self._run: Run | None = None
        self._weights: Snapshot | None = None
        self._version = 0
        self._lock = threading.RLock()
        self.closed = False

    @property
    def alive(self) -> bool:
        """Whether there is an actor, as far as is known."""
        return self._actor is not None and not self._actor.ended.done

    def __str__(self) -> str:
        """Its state in words."""
        state = "closed" if self.closed else "up" if self.alive else "no actor"
        name = "" if self._registration is None else f"{self._registration.name!r} "
        return f"{name}{state}{', a rollout is asked for' * (self._run is not None)}"

    def begin(self) -> None:
        """Have the actor begun.

        Raises:
            ValueError: the name is taken.
        """
        if (at := self._registration) is not None and self._backend.found(*at) is not None:
            raise ValueError(
                f"there is an actor named {at.name!r} in namespace {at.namespace!r} already; reach it with "
                "RayEvalWorker.from_name(), or choose another name"
            )
        if at is not None:
            self._backend.mark(*at, ended=False)
        self._engage()

    def join(self) -> None:
        """Reach the actor that is registered.

        Raises:
            ValueError: there is none.
            TypeError: it is of another kind.
        """
        assert self._registration is not None
        name, namespace = self._registration
        actor = self._backend.found(name, namespace)
        if actor is None:
            raise ValueError(f"there is no actor named {name!r} in namespace {namespace!r}; it was shut down, or never")
        if not all(hasattr(actor, method) for method in PUBLIC):
            raise TypeError(f"the actor named {name!r} in namespace {namespace!r} is no RayEvalWorker: {actor}")
        self._adopt(actor)

    def submit(self, weights: Snapshot | None, manner: Manner) -> None:
        """Ask for a rollout in place of the last one.

        Raises:
            Closed: it was shut down.
        """
        with self._lock:
            self._require_open()
            self._release()
            if weights is not None:
                self._weights, self._version = weights, self._version + 1
            self._run = run = Run(manner, weighted=weights is not None)
            self._number += 1
            self._send(run)
            self._require_open()
        self._backend.wake()

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
                    self._release()
                    self._run = None
                    break
                tickets, due = self._news(), self._due(run)
            now = monotonic()
            if until is not None and now >= until:
                return None
            wait_s = max(0.0, (due if until is None else min(due, until)) - now)
            self._backend.wait(tickets, wait_s, lambda: self._run is not run)
            if self.closed and self._run is None:
                raise Closed("this RayEvalWorker was shut down while its rollout was waited for")
        value = _opened(outcome)
        numbers = value if isinstance(value, dict) else value.head
        self._version = max(self._version, numbers["policy_version"])
        return value

    def close(self, timeout: float) -> None:
        """Close the env in the actor, and end the actor. Twice is fine."""
        with self._lock:
            if self.closed:
                return
            self.closed, self._run = True, None
            actor = self._actor
        self._backend.wake()
        if actor is not None:
            self._dismiss(actor, timeout)
        self._backend.close()

    def _require_open(self) -> None:
        if self.closed:
            self._run = None
            raise Closed("this RayEvalWorker was shut down, here or by another handle; make another one")

    def _dismiss(self, actor: RayHandle, timeout: float) -> None:
        if self._registration is not None and not self._backend.cluster.gone():
            self._backend.mark(*self._registration, ended=True)
        if actor.ready.done and not actor.ended.done:
            self._backend.call_aside(actor, "announce", None)
            self._backend.wait([self._backend.call(actor, "close")], timeout)
        self._end(actor)

    def _end(self, actor: RayHandle) -> None:
        self._backend.kill(actor)
        self._backend.wait([actor.ended], _KILL_S)

    # Lives

    def _engage(self) -> None:
        """Begin another life, or join the one that another handle has begun."""
        recipe = self._recipe
        assert recipe is not None
        before = None if recipe.init is None else cloudpickle.loads(recipe.init)
        threads = max(1, int(recipe.resources.get("num_cpus") or 1))
        job = Job(partial(Soloist, recipe), self._name(), threads, before, recipe.resources, PUBLIC)
        if self._registration is None:
            self._actor = self._backend.spawn(job)
        else:
            self._actor = self._backend.spawn_lasting(job, *self._registration)

    def _adopt(self, actor: Any) -> None:
        self._actor = self._backend.adopt(actor, Job(dict, self._name()))
        if self._recipe is None:
            self._told = self._backend.call_aside(self._actor, "recipe")

    def _name(self) -> Name:
        self._lives, self._began = self._lives + 1, monotonic()
        return Name(0, self._lives - 1)

    def _hear(self) -> None:
        """Take note of the recipe, if it has come."""
        if self._recipe is None and self._told is not None and isinstance(self._told.outcome, Value):
            self._recipe = self._told.outcome.value

    def _replace(self, loss: BaseException | None) -> Error | None:
        """Have another actor for the one that is gone; why not, if so.

        Args:
            loss: what is known of its end.
        """
        if self._backend.cluster.gone():
            self._backend.close()
            self._backend = LastingBackend()
        at = self._registration
        if at is not None and (actor := self._backend.found(*at)) is not None:
            self._adopt(actor)
            return None
        if at is not None and self._backend.is_over(*at):
            self.closed = True
            self._backend.close()
            return Error(Closed(f"the RayEvalWorker named {at.name!r} was shut down by another handle"))
        if self._recipe is None:
            return Error(loss or SwathError("the actor is gone, and has not told what it was made of"))
        self._engage()
        return None

    # Runs

    def _send(self, run: Run) -> Ticket:
        """Have it played by the actor there is, or by another; the call that brings it."""
        self._hear()
        actor, refusal = self._actor, None
        fresh = False
        if actor is None or actor.ended.done:
            refusal, fresh = self._replace(None if actor is None else _error_of(actor.ended)), True
        actor = self._actor
        if refusal is not None or actor is None:
            run.ticket = Ticket(Name(0, self._lives), "rollout")
            run.ticket.settle(refusal or Error(SwathError("there is no actor")))
            return run.ticket
        weights = self._weights if run.weighted or fresh else None
        run.shared = None if weights is None else self._backend.share(weights)
        ask = Ask(Token(self._asker, self._number), run.manner, run.shared, self._version)
        self._backend.call_aside(actor, "announce", ask.token)
        run.ticket = self._backend.call(actor, "rollout", ask)
        return run.ticket

    def _outcome(self, run: Run) -> Outcome | None:
        """What became of it, if anything has; acts on what has happened to the actor."""
        self._hear()
        assert run.ticket is not None
        failure = None if self._actor is None else _error_of(self._actor.ready)
        if failure is not None and not isinstance(failure, WorkerLost):
            self._part()
            return Error(failure)
        outcome = run.ticket.outcome
        if isinstance(outcome, Error) and isinstance(outcome.exception, WorkerLost):
            return self._again(run, outcome)
        if outcome is None and monotonic() >= self._due(run):
            late = self._late()
            self._part()
            return Error(late)
        return outcome

    def _again(self, run: Run, loss: Error) -> Outcome | None:
        run.losses += 1
        if self._recipe is None or run.losses > self._recipe.retries or self._backend.cluster.gone():
            return loss
        self._release()
        run.asked = monotonic()
        return self._send(run).outcome

    def _part(self) -> None:
        """End the actor; the next submit begins another."""
        if self._actor is not None:
            self._end(self._actor)

    def _release(self) -> None:
        if self._run is not None and self._run.shared is not None:
            self._run.shared.release()
            self._run.shared = None

    def _news(self) -> list[Ticket]:
        """What is to be looked at when it is there."""
        assert self._run is not None
        assert self._run.ticket is not None
        assert self._actor is not None
        starting = [ticket for ticket in (self._actor.placed, self._actor.ready) if not ticket.done]
        return [self._run.ticket, *starting]

    @property
    def _patience(self) -> Patience:
        return Patience() if self._recipe is None else self._recipe.patience

    def _due(self, run: Run) -> float:
        """When it is late."""
        actor, patience = self._actor, self._patience
        assert actor is not None
        if (ready := actor.ready.settled) is not None:
            return max(run.asked, ready) + patience.rollout_s
        if (placed := actor.placed.settled) is not None:
            return placed + patience.start_s
        return self._began + patience.placement_s

    def _late(self) -> SwathError:
        """What is late; the actor is to be ended."""
        actor, patience = self._actor, self._patience
        assert actor is not None
        if not actor.placed.done:
            asked, available = self._backend.room(actor)
            return PlacementFailed(
                f"the actor was not placed within placement_timeout_s={patience.placement_s:g}: it asks for {asked}; "
                f"there is {available}; ask for less (num_gpus=0, say) or wait longer; the next submit asks again",
                asked=asked,
                available=available,
            )
        what, name, seconds = (
            ("the rollout took longer than", "timeout_s", patience.rollout_s)
            if actor.ready.done
            else ("init_fn, env_maker and policy_maker took longer than", "start_timeout_s", patience.start_s)
        )
        why = f"{what} {name}={seconds:g}; the actor is ended, and the next submit begins another"
        return WorkerLate(why, workers=(0,), deadline=seconds)


def _error_of(ticket: Ticket) -> BaseException | None:
    return ticket.outcome.exception if isinstance(ticket.outcome, Error) else None


def _opened(outcome: Outcome | None) -> Any:
    assert outcome is not None
    if isinstance(outcome, Error):
        raise outcome.exception
    return outcome.value
