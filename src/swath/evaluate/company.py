"""The workers of an evaluator, from one evaluation to the next: brought up, given weights, asked for their parts.

    Order ─▶ workers up? ─▶ weights ─▶ round of parts ─▶ … ─▶ Performed
                 ▲                        │ a worker is lost: its next life plays its part again
                 └── anew, if too few are left: no failure is final

Used by one thread, but for `wake`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swath.errors import Closed, FleetFailed, PlacementFailed
from swath.evaluate.numbers import Facts
from swath.evaluate.parts import Footage, Part, Wishes
from swath.evaluate.playing import Playing
from swath.evaluate.request import EvalRequest
from swath.evaluate.rounds import Rounds
from swath.options import Restarts, Survival
from swath.weights.channel import Channel
from swath.weights.manifest import Manifest
from swath.weights.names import POLICY
from swath.weights.snapshot import Snapshot, take
from swath.workers.base import Backend, Job
from swath.workers.fleet import Fleet
from swath.workers.tickets import Name


@dataclass(frozen=True)
class Terms:
    """How an evaluator has its workers.

    Attributes:
        backend: makes the place where they live.
        job: how each life is begun.
        discard: closes what `job` was to use, and did not.
        workers: how many.
        retries: how many may be lost within one evaluation.
        start_timeout_s: how long one may take to be up.
        placement_timeout_s: before that, to be placed.
        model_ids: whose weights may be sent; `None` for all there are.
    """

    backend: Callable[[], Backend]
    job: Callable[[Name], Job]
    discard: Callable[[], None]
    workers: int = 1
    retries: int = 1
    start_timeout_s: float = 300.0
    placement_timeout_s: float = 60.0
    model_ids: frozenset[str] | None = None

    def require_declared(self, model_ids: Iterable[str]) -> None:
        """Check that weights of these models may be sent.

        Raises:
            KeyError: they may not; the message has those that may.
        """
        unknown = [] if self.model_ids is None else sorted(set(model_ids) - self.model_ids)
        if unknown:
            raise KeyError(f"weights for {unknown}, but weight_sync_schemes declare {sorted(self.model_ids or ())}")

    @property
    def survival(self) -> Survival:
        """What the fleet does about deaths within one evaluation."""
        restarts = Restarts(max_per_worker=self.retries, backoff_s=0.0, forgive_after_s=None)
        return Survival(restarts, placement_timeout_s=self.placement_timeout_s, start_timeout_s=self.start_timeout_s)


@dataclass(frozen=True)
class Order:
    """One evaluation, as it is to be played.

    Attributes:
        number: which.
        request: the conditions.
        models: weights by model id; those not named stay as they are.
        wishes: what is wanted beside the numbers.
    """

    number: int
    request: EvalRequest
    models: Mapping[str, Snapshot] = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)


@dataclass(frozen=True)
class Performed:
    """What came of an order.

    Attributes:
        rounds: with all episodes.
        facts: beside them.
        footage: of each worker and round.
        unwritten: what recorders in the envs could not write, in words.
    """

    rounds: Rounds
    facts: Facts
    footage: Sequence[Footage]
    unwritten: Sequence[str] = ()


class Company:
    """Workers that play evaluations one after another.

    Args:
        terms: how to have them.

    Attributes:
        complete: how many episodes of the present evaluation are played.
        starting: whether workers are being brought up.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._fleet: Fleet | None = None
        self._channel: Channel | None = None
        self._manifests: dict[str, Manifest] = {}
        self._weights: dict[str, Snapshot] = {}
        self._earlier_restarts = 0
        self._earlier: list[Fleet] = []  # with workers that cannot be ended
        self._closed = False
        self._lock = threading.Lock()
        self.starting = False
        self.complete = 0

    @property
    def restarts(self) -> int:
        """Lives that replaced others."""
        return self._earlier_restarts + (0 if self._fleet is None else self._fleet.restarts)

    @property
    def left_behind(self) -> list[str]:
        """What cannot be ended, since it is stuck: threads, by name."""
        fleets = [*self._earlier, *([] if self._fleet is None else [self._fleet])]
        return [name for fleet in fleets for name in fleet.left_behind]

    def models(self) -> dict[str, dict[str, Any]]:
        """The state of the policy, and of other models that were sent weights, as the last evaluation had it.

        For the thread that calls `perform`, after it.

        Raises:
            FleetFailed: too few workers are left to fetch what was never sent.
            WorkerLost: the worker that was asked is gone.
        """
        self._learn([POLICY] if POLICY not in self._manifests else [])
        sent = {model_id: self._state(model_id, weights) for model_id, weights in self._weights.items()}
        if POLICY not in sent:
            sent = {POLICY: self._asked("weights", POLICY), **sent}
        return sent

    def perform(self, order: Order, stopped: Callable[[], bool]) -> Performed:
        """Play an evaluation.

        Args:
            order: which.
            stopped: asked after each `wake`; true ends it with `Cancelled`.

        Raises:
            Cancelled: `stopped` said so.
            WorkerLost: workers were lost more often than the terms allow.
            WorkerLate: it took too long, or workers did not come up in time.
            PlacementFailed: there was no room for them.
            KeyError, ValueError, TypeError: weights that do not fit.
            Exception: what code of the user raised.
        """
        self.complete = 0
        fleet, channel = self._assembled()
        self._send(order.models)
        rounds, footage, seconds = Rounds(order.request), list[Footage](), 0.0
        playing = Playing(fleet, channel, self._terms.retries, order.request.limits.timeout_s)
        try:
            while rounds.stopped is None:
                part = Part(order.number, rounds.due, order.request, order.wishes)
                played = playing.round(part, stopped, self._progressed)
                rounds.played(played.rows)
                seconds += played.seconds
                footage.extend(played.footage)
            unwritten = playing.dump((order.request.step, order.wishes.dump), stopped)
        except FleetFailed as failure:
            raise failure.causes[-1] from None
        finally:
            playing.let_go()
        return Performed(rounds, Facts(seconds, played.seeding, playing.losses), footage, unwritten)

    def wake(self) -> None:
        """Let `perform`, in another thread, ask whether it is stopped."""
        if (fleet := self._fleet) is not None:
            fleet.wake()

    def close(self, timeout: float) -> list[BaseException]:
        """Close the envs where they live and end the workers; what closing raised. Also while `perform` is at work."""
        with self._lock:
            self._closed, fleet = True, self._fleet
        try:
            return [] if fleet is None else fleet.close(timeout)
        finally:
            self._terms.discard()

    def _progressed(self, complete: int) -> None:
        self.complete = complete

    def _assembled(self) -> tuple[Fleet, Channel]:
        """The workers, up; another set of them if too few are left of the last."""
        fleet = self._fleet
        if fleet is not None:
            fleet.look()
            fleet.forgive()
            if fleet.failure is not None:
                self._earlier_restarts += fleet.restarts
                fleet.close(0.0)
                self._part_with(fleet)
                fleet = None
        if fleet is None:
            fleet = self._engage()
        assert self._channel is not None
        return fleet, self._channel

    def _engage(self) -> Fleet:
        fleet, backend = self._fleet_of_its_own()
        try:
            fleet.bring_up()
        except (FleetFailed, PlacementFailed) as failure:
            self._part_with(fleet)
            raise _said(failure) from None
        except BaseException:
            self._part_with(fleet)
            raise
        finally:
            self.starting = False
        self._channel = Channel(backend.share)
        if self._weights:
            self._channel.publish(self._weights)
        return fleet

    def _part_with(self, fleet: Fleet) -> None:
        """It is closed."""
        self._earlier = [each for each in (*self._earlier, fleet) if each.abandoned]
        self._fleet = None

    def _fleet_of_its_own(self) -> tuple[Fleet, Backend]:
        """Not begun yet; `close` ends it from now on."""
        terms = self._terms
        backend = terms.backend()  # it may join a cluster, which takes seconds: `close` does not wait for that
        with self._lock:
            if not self._closed:
                fleet = self._fleet = Fleet(backend, terms.job, terms.workers, terms.survival)
                self.starting = True
                return fleet, backend
        backend.close()
        raise Closed("the workers were shut down; build another evaluator")

    def _send(self, models: Mapping[str, Snapshot]) -> None:
        """Check all, then publish all."""
        assert self._fleet is not None
        assert self._channel is not None
        self._terms.require_declared(models)
        self._learn([model_id for model_id in models if model_id not in self._manifests])
        fitted = {model_id: self._fitted(model_id, weights) for model_id, weights in models.items()}
        extras = {model_id: each.extras for model_id, each in fitted.items() if each.extras and model_id != POLICY}
        if extras:
            self._asked("check", extras)
        if fitted:
            self._weights.update(fitted)
            self._channel.publish(fitted)

    def _fitted(self, model_id: str, weights: Snapshot) -> Snapshot:
        fitting = take(weights.weights(), self._manifests[model_id])
        if fitting is None:
            raise TypeError(f"weights were sent for {model_id!r}, which has none; leave them out")
        return fitting

    def _state(self, model_id: str, weights: Snapshot) -> dict[str, Any]:
        """Weights under all names that the model has for them."""
        held, aliases = weights.weights(), self._manifests[model_id].aliases
        return {**held, **{name: held[first] for name, first in aliases.items() if first in held}}

    def _learn(self, model_ids: Sequence[str]) -> None:
        if model_ids:
            self._manifests.update(self._asked("manifests", model_ids))

    def _asked(self, method: str, *args: Any) -> Any:
        """The answer of any worker."""
        assert self._fleet is not None
        fleet = self._fleet
        fleet.settle(range(self._terms.workers))
        if fleet.failure is not None:
            raise fleet.failure.causes[-1]
        ticket = fleet.call(next(iter(fleet.up.values())), method, *args)
        fleet.answers([ticket])
        return ticket.value


def _said(failure: FleetFailed | PlacementFailed) -> BaseException:
    """What an evaluation says of workers that did not come up."""
    if isinstance(failure, FleetFailed):
        return failure.causes[-1]
    advice = "ask for less (num_gpus=0, say), wait longer, or free some; the next evaluation asks again"
    return PlacementFailed(f"{failure}; {advice}", asked=failure.asked, available=failure.available)
