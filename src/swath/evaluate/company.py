"""The workers of an evaluator, from one evaluation to the next: brought up, given weights, asked for their parts.

    Order ─▶ workers there? ─▶ weights ─▶ round of parts ─▶ … ─▶ Performed
                 ▲                        │ a worker is lost: its next life plays its part again
                 └── anew, if too few are left: no failure is final

Used by one thread, but for `wake`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from swath.errors import Closed, FleetFailed, PlacementFailed
from swath.evaluate.jobs import Jobs, WorkerOptions
from swath.evaluate.numbers import Facts, Rounds
from swath.evaluate.parts import Footage, Part, Wishes
from swath.evaluate.playing import Playing
from swath.evaluate.request import EvalRequest
from swath.evaluate.sending import Sending
from swath.rollout.hosts.torchrl import CREATOR, creator_apart
from swath.weights.snapshot import Snapshot
from swath.workers.base import Backend
from swath.workers.fleet import Fleet
from swath.workers.packing import travels

travels(*CREATOR, creator_apart)

LEAST_S = 0.2
"""How long what no worker has closed may take to be closed, at least."""


@dataclass(frozen=True)
class Order:
    """One evaluation, as it is to be played.

    Attributes:
        request: the conditions.
        models: weights by model id; those not named stay as they are.
        wishes: what is wanted beside the numbers.
    """

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
        options: where they live, and how many they are.
        jobs: makes how each life is begun.

    Attributes:
        complete: how many episodes of the present evaluation are played.
        wanted: how many its rounds have so far.
        retries: how often shares were played again, or answers asked for, after a worker was lost.
        starting: whether workers are being brought up.
    """

    def __init__(self, options: WorkerOptions, jobs: Jobs) -> None:
        self._options, self._jobs = options, jobs
        self._fleet: Fleet | None = None
        self._sending = Sending(options.model_ids)
        self._timeout_s = 0.0
        self._evaluations = 0
        self._earlier_restarts = 0
        self._earlier: list[Fleet] = []  # with workers that cannot be ended
        self._closed = False
        self._closing: threading.Thread | None = None
        self._lock = threading.Lock()
        self.starting = False
        self.complete = self.wanted = self.retries = 0

    @property
    def restarts(self) -> int:
        """Lives that replaced others."""
        return self._earlier_restarts + (0 if self._fleet is None else self._fleet.restarts)

    @property
    def left_behind(self) -> list[str]:
        """What cannot be ended, since it is stuck: threads, by name."""
        fleets = [*self._earlier, *([] if self._fleet is None else [self._fleet])]
        closing = [] if self._closing is None or not self._closing.is_alive() else [self._closing.name]
        return [*closing, *(name for fleet in fleets for name in fleet.left_behind)]

    def models(self) -> dict[str, dict[str, Any]]:
        """The state of the policy, and of other models that were sent weights, as the last evaluation had it.

        For the thread that calls `perform`, after it.

        Raises:
            WorkerLost: too few workers are left to fetch what was never sent.
            WorkerLate: it took longer than an evaluation may.
        """
        with self._playing(self._timeout_s, lambda: False) as playing:
            return self._sending.state(playing.asked)

    def perform(self, order: Order, stopped: Callable[[], bool]) -> Performed:
        """Play an evaluation.

        Args:
            order: which.
            stopped: asked after each `wake`; true ends it with `Cancelled`.

        Raises:
            Cancelled: `stopped` said so.
            WorkerLost: workers were lost more often than `retries`.
            WorkerLate: it took too long, or workers did not come up in time.
            PlacementFailed: there was no room for them.
            KeyError, ValueError, TypeError: weights that do not fit.
            Exception: what code of the user raised.
        """
        self.complete = self.wanted = 0
        self._evaluations += 1
        self._timeout_s = order.request.limits.timeout_s
        self._assemble(stopped)
        rounds, footage, seconds = Rounds(order.request), list[Footage](), 0.0
        with self._playing(self._timeout_s, stopped) as playing:
            self._sending.send(order.models, playing.asked)
            while rounds.stopped is None:
                self.wanted = rounds.due.stop
                part = Part(self._evaluations, rounds.due, order.request, order.wishes)
                played = playing.round(part, self._sending.channel, self._progressed)
                rounds.played(played.rows)
                seconds += played.seconds
                footage.extend(played.footage)
            unwritten = playing.dump(order.request.step, write=order.wishes.dump)
        return Performed(rounds, Facts(seconds, played.seeding, playing.losses), footage, unwritten)

    def wake(self) -> None:
        """Let `perform`, in another thread, ask whether it is stopped."""
        if (fleet := self._fleet) is not None:
            fleet.wake()

    def close(self, timeout: float) -> list[BaseException]:
        """Close the envs where they live and end the workers; what closing raised. Also while `perform` is at work."""
        until = monotonic() + timeout
        with self._lock:
            self._closed, fleet = True, self._fleet
        errors: list[BaseException] = []
        try:
            if fleet is not None:
                errors.extend(fleet.close(timeout))
        finally:
            self._close_leftover(max(LEAST_S, until - monotonic()), errors)
        return errors

    def _close_leftover(self, timeout: float, errors: list[BaseException]) -> None:
        """In a thread, for it is code of the user, which may hang."""
        closers = self._jobs.leftover()
        if not closers:
            return
        closing = threading.Thread(target=_call_all, args=(closers, errors), name="swath eval closes", daemon=True)
        closing.start()
        closing.join(timeout)
        if closing.is_alive():
            self._closing = closing

    def _progressed(self, complete: int) -> None:
        self.complete = complete

    @contextmanager
    def _playing(self, timeout_s: float, stopped: Callable[[], bool]) -> Iterator[Playing]:
        """Calls to the workers; whoever still answers to one at the end is waited for a moment, then ended."""
        assert self._fleet is not None
        playing = Playing(self._fleet, self._options.retries, timeout_s, stopped)
        try:
            yield playing
        except FleetFailed as failure:
            raise failure.causes[-1] from None
        finally:
            self.retries += min(playing.losses, self._options.retries)
            playing.let_go()

    def _assemble(self, stopped: Callable[[], bool]) -> None:
        """Have the workers up; another set of them if too few are left of the last."""
        if (fleet := self._fleet) is not None:
            with self._playing(self._timeout_s, stopped) as playing:
                complete = playing.call_the_roll()
            if complete:
                return
            failure, gone = fleet.failure, fleet.place_gone
            fleet.close(0.0)
            self._part_with(fleet)
            if failure is not None and gone:
                raise failure.causes[-1]  # others are not begun elsewhere without a word
            self._earlier_restarts += self._options.number
        self._engage()

    def _engage(self) -> None:
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
        self._sending.engage(backend.share)

    def _part_with(self, fleet: Fleet) -> None:
        """It is closed."""
        self._earlier = [each for each in (*self._earlier, fleet) if each.left_behind]
        self._earlier_restarts += fleet.restarts
        self._fleet = None

    def _fleet_of_its_own(self) -> tuple[Fleet, Backend]:
        """Not begun yet; `close` ends it from now on."""
        options = self._options
        backend = options.backend()  # it may join a cluster, which takes seconds: `close` does not wait for that
        with self._lock:
            if not self._closed:
                fleet = self._fleet = Fleet(backend, self._jobs, options.number, options.survival)
                self.starting = True
                return fleet, backend
        backend.close()
        raise Closed("the workers were shut down; build another evaluator")


def _call_all(closers: Sequence[Callable[[], None]], errors: list[BaseException]) -> None:
    for close in closers:
        try:
            close()
        except BaseException as error:  # noqa: BLE001  it is logged where all are closed
            errors.append(error)


def _said(failure: FleetFailed | PlacementFailed) -> BaseException:
    """What an evaluation says of workers that did not come up."""
    if isinstance(failure, FleetFailed):
        return failure.causes[-1]
    advice = "ask for less (num_gpus=0, say), wait longer, or free some; the next evaluation asks again"
    return PlacementFailed(f"{failure}; {advice}", asked=failure.asked, available=failure.available)
