"""A handle's hold on the actor of a `RayEvalWorker`: begun, found, replaced, ended.

begin ─▶ actor ◀─ join ◀─ another driver, which hears the recipe from the actor
            │ gone: whoever needs it first begins another under the same name, the others find that one
            └ ended by a handle: nobody begins another
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any

import cloudpickle

from swath.errors import Closed, PlacementFailed, SwathError, WorkerLate
from swath.evaluate.rollout_request import Patience, Recipe, Registration
from swath.evaluate.soloist import Soloist
from swath.workers.base import Job
from swath.workers.outcome import Error, Value
from swath.workers.ray.handle import RayHandle
from swath.workers.ray.lasting import LastingBackend
from swath.workers.tickets import Name, Ticket

PUBLIC = ("announce", "recipe")
"""Methods by which an actor shows of what kind it is."""

_KILL_S = 2.0


class Tenure:
    """One actor after another; used under its owner's lock, but for `backend.wait`.

    Args:
        recipe: what the actor is made of; `None` until it tells.
        registration: under which it is found.

    Attributes:
        backend: where it lives.
        actor: the present one; it may have ended.

    Raises:
        ValueError: this process is a client of a cluster, not part of it.
    """

    def __init__(self, recipe: Recipe | None, registration: Registration | None) -> None:
        self._recipe, self._registration = recipe, registration
        self.backend = LastingBackend()
        self.actor: RayHandle
        self._told: Ticket | None = None
        self._lives = 0
        self._began = 0.0

    def __str__(self) -> str:
        """Its state in words."""
        name = "" if self._registration is None else f"{self._registration.name!r} "
        return f"{name}{'gone' if self.actor.ended.done else 'up' if self.actor.ready.done else 'starting'}"

    def begin(self) -> None:
        """Have the actor begun.

        Raises:
            ValueError: the name is taken, or Ray does not take an option.
            TypeError: what makes env or policy cannot be pickled.
        """
        if (at := self._registration) is not None:
            if self.backend.found(*at) is not None:
                raise ValueError(
                    f"there is an actor named {at.name!r} in namespace {at.namespace!r} already; reach it with "
                    "RayEvalWorker.from_name(), or choose another name"
                )
            self.backend.mark(*at, ended=False)
        assert self._recipe is not None
        self._engage(self._recipe)

    def join(self) -> None:
        """Reach the actor that is registered.

        Raises:
            ValueError: there is none.
            TypeError: it is of another kind.
        """
        assert self._registration is not None
        name, namespace = self._registration
        actor = self.backend.found(name, namespace)
        if actor is None:
            raise ValueError(
                f"there is no actor named {name!r} in namespace {namespace!r}: it was shut down, is lost, or another "
                "name or namespace was given to RayEvalWorker"
            )
        if not all(hasattr(actor, method) for method in PUBLIC):
            raise TypeError(f"the actor named {name!r} in namespace {namespace!r} is no RayEvalWorker: {actor}")
        self._adopt(actor)

    def renew(self) -> None:
        """Have another actor in place of one that has ended: that of another handle, or one of our own.

        Raises:
            Closed: another handle has ended it for good.
            WorkerLost: it is gone, and had not told what it was made of.
        """
        if self.backend.cluster.gone():
            self.backend.close()
            self.backend = LastingBackend()
        at = self._registration
        if at is not None and (actor := self.backend.found(*at)) is not None:
            self._adopt(actor)
        elif dismissal := self.dismissal():
            raise dismissal.exception
        elif self._recipe is None:
            self.actor.ended.value  # noqa: B018  it raises
        else:
            self._engage(self._recipe)

    def dismissal(self) -> Error | None:
        """What a loss comes to where another handle has ended the actor for good; `None` if none has."""
        at = self._registration
        if at is None or self.backend.cluster.gone() or not self.backend.is_over(*at):
            return None
        return Error(Closed(f"the RayEvalWorker named {at.name!r} was shut down by another handle; make another one"))

    def hear(self) -> None:
        """Take note of the recipe, if it has come."""
        if self._recipe is None and self._told is not None and isinstance(self._told.outcome, Value):
            self._recipe = self._told.outcome.value

    @property
    def telling(self) -> Ticket | None:
        """Settled when the actor has told what it is made of; `None` if that is known."""
        return self._told if self._recipe is None else None

    @property
    def retries(self) -> int:
        """How often a rollout may be repeated, as far as that can be done."""
        return 0 if self._recipe is None or self.backend.cluster.gone() else self._recipe.retries

    def part(self) -> None:
        """End the actor, and wait until Ray says so."""
        self.backend.kill(self.actor)
        self.backend.wait([self.actor.ended], _KILL_S)

    def dismiss(self, timeout: float) -> None:
        """Close the env, if that goes within so many seconds, and end the actor for good and for all handles."""
        if self._registration is not None and not self.backend.cluster.gone():
            self.backend.mark(*self._registration, ended=True)
        actor = self.actor
        if actor.ready.done and not actor.ended.done:
            self.backend.call_aside(actor, "announce", None)
            self.backend.wait([self.backend.call(actor, "close")], timeout)
        self.part()

    # Deadlines

    def due(self, asked: float) -> float:
        """When a rollout that was asked for then is late, or what it waits for."""
        actor, patience = self.actor, self._patience
        if (ready := actor.ready.settled) is not None:
            return max(asked, ready) + patience.rollout_s
        if (placed := actor.placed.settled) is not None:
            return placed + patience.start_s
        return self._began + patience.placement_s

    def late(self) -> SwathError:
        """What is late."""
        actor, patience = self.actor, self._patience
        if actor.ready.done:
            return _late("the rollout took", "timeout_s", patience.rollout_s)
        if actor.placed.done:
            return _late("init_fn, env_maker and policy_maker took", "start_timeout_s", patience.start_s)
        asked, available = self.backend.room(actor)
        return PlacementFailed(
            f"the actor was not placed within placement_timeout_s={patience.placement_s:g}: it asks for {asked}; "
            f"there is {available}; ask for less (num_gpus=0, say) or wait longer; the next submit asks again",
            asked=asked,
            available=available,
        )

    @property
    def _patience(self) -> Patience:
        return Patience() if self._recipe is None else self._recipe.patience

    # Lives

    def _engage(self, recipe: Recipe) -> None:
        """Begin another life, or join that which another handle has begun meanwhile."""
        before = None if recipe.init is None else cloudpickle.loads(recipe.init)
        threads = max(1, int(recipe.resources.get("num_cpus") or 1))
        job = Job(partial(Soloist, recipe), self._name(), threads, before, recipe.resources, PUBLIC)
        at = self._registration
        self.actor = self.backend.spawn(job) if at is None else self.backend.spawn_lasting(job, *at)

    def _adopt(self, actor: Any) -> None:
        self.actor = self.backend.adopt(actor, Job(dict, self._name()))
        if self._recipe is None:
            self._told = self.backend.call_aside(self.actor, "recipe")

    def _name(self) -> Name:
        self._lives, self._began = self._lives + 1, monotonic()
        return Name(0, self._lives - 1)


def _late(what: str, setting: str, seconds: float) -> WorkerLate:
    why = f"{what} longer than {setting}={seconds:g}; the actor is ended, and the next submit begins another"
    return WorkerLate(why, workers=(0,), deadline=seconds)
