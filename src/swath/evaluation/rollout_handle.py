"""The actor of a `RayEvalWorker` as one handle has it: begun or found, asked for rollouts, replaced, ended.

submit ─▶ rollout in the actor ─▶ poll: outcome | not yet
             │ lost: the handle that built the actor begins another, sends the weights again, and asks again
             └ late: the actor is ended; the next submit begins another

It has no thread of its own: deadlines and deaths are acted on by `poll` and `submit`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeGuard
from uuid import uuid4

from swath.errors import Closed, PlacementFailed, SwathError, WorkerLate, WorkerLost
from swath.evaluation.eval_actor import PUBLIC, Ask
from swath.evaluation.newest import Token, begun, superseded
from swath.evaluation.request import require_positive
from swath.extras import need
from swath.options import count
from swath.weights.channel import Channel
from swath.weights.snapshot import POLICY, Snapshot
from swath.workers.base import Job
from swath.workers.outcome import Error, Outcome
from swath.workers.ray.actors import RayHandle
from swath.workers.ray.backend import RayBackend
from swath.workers.tickets import Name, Ticket

_KILL_S = 2.0


class Address(NamedTuple):
    """Where other drivers find an actor.

    Attributes:
        name: of the actor.
        namespace: in which it is unique.
    """

    name: str
    namespace: str

    def __str__(self) -> str:
        """In words."""
        return f"named {self.name!r} in namespace {self.namespace!r}"


@dataclass(frozen=True)
class ActorOptions:
    """How an actor is begun, and what it may take; see `RayEvalWorker`."""

    init: Callable[[], Any] | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 1
    timeout_s: float = 3600.0
    start_timeout_s: float = 300.0
    placement_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.init is not None and not callable(self.init):
            raise TypeError(f"init_fn is of type {type(self.init).__name__}; it must be callable, or None")
        count("retries", self.retries, least=0)
        for name in ("timeout_s", "start_timeout_s", "placement_timeout_s"):
            require_positive(name, getattr(self, name))


@dataclass
class _Run:
    """A rollout that was asked for.

    Attributes:
        ask: it.
        ticket: the call that brings it.
        asked: when.
        losses: how many actors were lost over it.
    """

    ask: Ask
    ticket: Ticket
    asked: float = field(default_factory=monotonic)
    losses: int = 0


class RolloutHandle:
    """Asks for rollouts, and brings their outcomes. Any thread may use it.

    Args:
        build: makes what lives in the actor, an `EvalActor`; `None`: another handle has built it, and replaces it.
        at: under which name it is found; `None` for none.
        options: of the actor.

    Raises:
        ValueError: the name is taken, or nobody has it; or this process is a client of a cluster, not part of it.
        TypeError: what has the name is something else; or what is sent cannot be pickled.
    """

    def __init__(
        self,
        build: Callable[..., Any] | None,
        at: Address | None,
        options: ActorOptions | None = None,
    ) -> None:
        self._build, self._at, self._options = build, at, options or ActorOptions()
        self._backend = RayBackend()
        self._channel = Channel(self._backend.share)
        self._lives, self._began = 0, monotonic()
        self._asker, self._number = uuid4().hex, 0
        name, namespace = (self._asker, "swath") if at is None else at
        self._register = Address(f"{name} (newest)", namespace)
        self._newest: Any = None
        self._run: _Run | None = None
        self._weights: Snapshot | None = None  # for another cluster, if this one goes
        self._version = 0
        self._lock = threading.RLock()
        self._closed = False
        self._actor: RayHandle = self._found_at(at) if build is None and at is not None else self._first()

    def __str__(self) -> str:
        """Its state in words."""
        if self._closed:
            return "closed"
        actor, name = self._actor, "" if self._at is None else f"{self._at.name!r} "
        state = "gone" if actor.ended.done else "up" if actor.ready.done else "starting"
        return f"{name}{state}{', a rollout is asked for' * (self._run is not None)}"

    def submit(self, weights: Snapshot | None, **manner: Any) -> None:
        """Ask for a rollout in place of the last one.

        Args:
            weights: for the policy; `None` for those it has.
            **manner: as `Ask` takes it.

        Raises:
            Closed: it was shut down.
        """
        with self._lock:
            if self._closed:
                raise Closed("this RayEvalWorker was shut down; make another one")
            self._run = None
            self._number += 1
            if weights is not None:
                self._weights, self._version = weights, self._version + 1
                self._channel.publish({POLICY: weights}, version=self._version)
            run = _Run(Ask(Token(self._asker, self._number), **manner), self._actor.ended)
            self._send(run)
            self._run = run
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
                if (outcome := self._outcome(run)) is not None:
                    self._run = None
                    return self._opened(outcome)
                actor, due, backend = self._actor, self._due(run), self._backend
                news = [ticket for ticket in (run.ticket, actor.ready, actor.placed) if not ticket.done]
            now = monotonic()
            if until is not None and now >= until:
                return None
            first = due if until is None else min(due, until)
            backend.wait(news, max(0.0, first - now), lambda: self._run is not run)
            if self._closed:
                raise Closed("this RayEvalWorker was shut down while its rollout was waited for")

    def close(self, timeout: float) -> None:
        """Close the env in the actor, if that goes within so many seconds, and end the actor. Twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._run, self._closed = None, True
        backend, actor = self._backend, self._actor
        backend.wake()
        self._announce(None)
        if self._build is None:
            backend.wait([actor.ready, actor.ended], timeout)  # what was found is up, though this handle may be new
        if actor.ready.done and not actor.ended.done:
            backend.wait([backend.call(actor, "close")], timeout)
        self._kill()
        self._newest = None
        if not backend.cluster.gone() and (newest := backend.found(*self._register)) is not None:
            need("ray", extra="ray", why="for RayEvalWorker").kill(newest)
        backend.close()

    # The actor

    def _first(self) -> RayHandle:
        if self._at is not None and self._backend.found(*self._at) is not None:
            raise ValueError(f"there is an actor {self._at} already; reach it with RayEvalWorker.from_name()")
        return self._begun()

    def _begun(self) -> RayHandle:
        """Another life."""
        assert self._build is not None
        if self._backend.cluster.gone():
            self._backend.close()
            self._backend, self._newest = RayBackend(), None
            self._channel = Channel(self._backend.share)
            if self._weights is not None:
                self._channel.publish({POLICY: self._weights}, version=self._version)
        options, threads = self._options, max(1, int(self._options.resources.get("num_cpus") or 1))
        name = Name(0, self._lives)
        if self._at is not None or self._newest is None:  # without a name it lives as long as its first handle
            self._newest = begun(*self._register, lasts=self._at is not None)
        build = partial(self._build, superseded=partial(superseded, *self._register))
        job = Job(build, name, threads, options.init, options.resources, PUBLIC)
        self._lives, self._began = self._lives + 1, monotonic()
        return self._backend.spawn(job) if self._at is None else self._backend.spawn_lasting(job, *self._at)

    def _found_at(self, at: Address) -> RayHandle:
        actor = self._backend.found(*at)
        if actor is None:
            raise ValueError(f"there is no actor {at}: it was shut down, is lost, or has another name")
        if not all(hasattr(actor, method) for method in PUBLIC):
            raise TypeError(f"the actor {at} is no RayEvalWorker: {actor}")
        return self._backend.adopt(actor, Job(dict, Name(0, 0)))

    def _announce(self, token: Token | None) -> None:
        """What is being played stops at its next step, if it is another."""
        if not self._backend.cluster.gone() and (newest := self._backend.found(*self._register)) is not None:
            newest.announce.options(max_task_retries=0).remote(token)

    def _kill(self) -> None:
        """End the actor, and wait until Ray says so."""
        self._backend.kill(self._actor)
        self._backend.wait([self._actor.ended], _KILL_S)

    # Rollouts

    def _send(self, run: _Run) -> None:
        """Have it played by the actor there is, or by another if this handle can begin one."""
        if self._actor.killed is not None or self._backend.wait([self._actor.ended], 0.0):
            if self._build is None:
                return
            self._actor = self._begun()
        self._announce(run.ask.token)
        with self._channel.update_for(self._actor.name) as update:
            run.asked, run.ticket = monotonic(), self._backend.call(self._actor, "rollout", run.ask, update)

    def _outcome(self, run: _Run) -> Outcome | None:
        """What became of it, if anything has; acts on what has happened to the actor."""
        ready, outcome = self._actor.ready.outcome, run.ticket.outcome
        if _is_loss(outcome):
            return self._again(run, outcome)
        if isinstance(ready, Error) and not _is_loss(ready):  # it could not be built, and `ready` says why
            self._kill()
            return ready
        if outcome is not None and ready is not None:
            return outcome
        if monotonic() < self._due(run):
            return None
        late = self._late()
        self._kill()
        return Error(late)

    def _again(self, run: _Run, loss: Error) -> Outcome | None:
        """Have it played by another actor; why not, if so."""
        run.losses += 1
        if self._build is None:
            why = f"{loss.exception}; the handle that built it begins another, then from_name() finds that one"
            return Error(WorkerLost(why))
        if run.losses > self._options.retries or self._backend.cluster.gone():
            return loss
        try:
            self._send(run)
        except SwathError as refusal:
            return Error(refusal)
        return None

    def _due(self, run: _Run) -> float:
        """When it is late, or what it waits for."""
        actor = self._actor
        if (ready := actor.ready.settled) is not None:
            return max(run.asked, ready) + self._options.timeout_s
        if (placed := actor.placed.settled) is not None:
            return placed + self._options.start_timeout_s
        return self._began + self._options.placement_timeout_s

    def _late(self) -> SwathError:
        actor, options = self._actor, self._options
        if actor.ready.done:
            return _too_long("the rollout", "timeout_s", self._options.timeout_s)
        if actor.placed.done:
            return _too_long("init_fn, env_maker and policy_maker", "start_timeout_s", options.start_timeout_s)
        asked, available = self._backend.room(actor)
        return PlacementFailed(
            f"the actor was not placed within placement_timeout_s={options.placement_timeout_s:g}: it asks for "
            f"{asked}; there is {available}; ask for less (num_gpus=0, say); the next submit asks again",
            asked=asked,
            available=available,
        )

    def _opened(self, outcome: Outcome) -> Any:
        if isinstance(outcome, Error):
            raise outcome.exception
        numbers = outcome.value if isinstance(outcome.value, dict) else outcome.value.head
        self._version = max(self._version, numbers["policy_version"])
        return outcome.value


def _is_loss(outcome: Outcome | None) -> TypeGuard[Error]:
    return isinstance(outcome, Error) and isinstance(outcome.exception, WorkerLost)


def _too_long(what: str, setting: str, limit: float) -> WorkerLate:
    why = f"{what} took longer than {setting}={limit:g}; the actor is ended, and the next submit begins another"
    return WorkerLate(why, workers=(0,), deadline=limit)
