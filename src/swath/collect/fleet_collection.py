"""The service behind the collectors with many workers: a fleet, a channel of weights, and a way to deliver.

draw ─▶ gather (all_of | first_of) ─▶ bodies opened ─▶ one copy into a batch ─▶ the next are asked for ─▶ delivered
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from swath.collect.counters import Counters
from swath.collect.deliver import Delivery, Drawn
from swath.collect.desk import Desk, Sent
from swath.collect.gate import Gate
from swath.collect.gather import Interrupted, Pace
from swath.collect.shaping import Shaper
from swath.collect.whole import WholeEpisodes
from swath.errors import WorkerLost
from swath.weights.due import Due
from swath.workers.outcome import Error
from swath.workers.tickets import Ticket

NO_KEYWORDS: Mapping[str, Any] = {}


class Gather(Protocol):
    """Who is asked next, and whose fragment comes next; see `AllOf` and `FirstOf`."""

    def begin(self) -> None:
        """The user draws."""

    def ahead(self) -> None:
        """A batch is about to be handed out."""

    def next(self, interrupted: Interrupted) -> list[Sent] | None:
        """What makes up the next batch."""

    def again(self, shares: list[Sent], lost: Sent) -> None:
        """One of them was lost."""

    def forget(self, workers: list[int] | None = None) -> None:
        """What was asked for is not wanted any more."""


@dataclass(frozen=True)
class Making:
    """How bodies become a batch.

    Attributes:
        batch: makes one batch of the bodies of its shares; they may be views.
        parts: makes the parts that are written to a replay buffer one after another.
    """

    batch: Callable[[Sequence[Any]], Any]
    parts: Callable[[Sequence[Any]], list[Any]]


@dataclass
class FleetCollection:
    """Draws from many workers. Any thread may call; one draws at a time.

    Attributes:
        desk: asks the workers.
        gather: decides whom.
        pace: how far ahead, and how many batches are random.
        making: how bodies become batches.
        shaper: what happens to batches on their way out.
        due: when weights are published without being told to.
        republish: publishes the weights of the user's own policy.
        batch_frames: frames of a batch.
        buffer: where batches are written, if anywhere.
        name: of the face, for messages.
    """

    desk: Desk
    gather: Gather
    pace: Pace
    making: Making
    shaper: Shaper
    due: Due
    republish: Callable[[], Any]
    batch_frames: int
    buffer: Any = None
    name: str = "collector"
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.gate = Gate(self.name)
        self.changing = threading.RLock()  # held by who adds workers, which takes long
        self._delivery = Delivery(self.shaper, self.counters, self.gate.require_open, self.buffer)
        wanted, writing = self.shaper.trajectories, self.buffer is not None
        self.whole = None if wanted.per_batch is None else WholeEpisodes(wanted, self.counters, writing)

    @property
    def version(self) -> int:
        """The newest version that was published."""
        return self.desk.channel.version

    @property
    def completed(self) -> bool:
        """Whether the run has reached its end."""
        total = self.desk.budget.total_frames
        return total is not None and self.counters.frames >= total

    def draw(self) -> Drawn:
        """The next batch.

        Raises:
            Closed: after shutdown, or shut down meanwhile.
            RuntimeError: another thread is drawing.
            FleetFailed: too few workers are left.
            Exception: what user code raised in a worker, as its own type; draw again.
        """
        with self.gate.drawing():
            self.gate.require_open()
            if self.completed:
                self.drop_in_flight()
                return Drawn(None, ended=True)
            self.counters.start_clock()
            began = time.monotonic()
            try:
                if self.due.at_draw():
                    self.republish()
                return self._deliver() if self.whole is None else self._deliver_whole(self.whole)
            finally:
                self.counters.seconds_waiting += time.monotonic() - began

    def control(
        self,
        method: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = NO_KEYWORDS,
        workers: Sequence[int] | None = None,
    ) -> dict[int, Any]:
        """Call a method of every worker, or of these, between two fragments; the answers by worker.

        Workers that die meanwhile give none; their next lives are built as if they had been called.

        Raises:
            Closed: after shutdown.
            WorkerLate: somebody did not answer in time.
            Exception: what a worker raised.
        """
        return self.answers(self.send(method, args, kwargs, workers))

    def send(
        self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], workers: Sequence[int] | None = None
    ) -> dict[int, Ticket]:
        """Send a control call to every worker, or to these; the tickets of those that are up.

        Workers that are still being built answer when they are: they are called, and not waited for.
        """
        self.gate.require_open()
        with self.desk.lock:
            fleet = self.desk.fleet
            begun = [worker for worker, one in fleet.standings().items() if one.phase in ("up", "starting")]
            asked = begun if workers is None else [worker for worker in workers if worker in begun]
            tickets = {worker: self.desk.control(worker, method, args, kwargs) for worker in asked}
            return {worker: ticket for worker, ticket in tickets.items() if worker in fleet.up}

    def answers(self, tickets: Mapping[int, Ticket], deadline: float | None = None) -> dict[int, Any]:
        """Wait for all of them; see `control`."""
        self.desk.fleet.answers(list(tickets.values()), deadline)
        return {worker: ticket.value for worker, ticket in tickets.items() if not _is_lost(ticket)}

    def forget(self, workers: list[int] | None = None) -> None:
        """What is in flight or half-built of all workers, or of these, is dropped and counted."""
        with self.desk.lock:
            self.gather.forget(workers)
            self._drop_whole(workers)

    @contextmanager
    def forgetting(self, workers: list[int] | None = None) -> Iterator[None]:
        """Calls sent within come after what is dropped, and before whatever is asked for later."""
        with self.desk.lock:
            self.forget(workers)
            yield

    def skip_random(self, frames: int) -> None:
        """As many frames have been collected before: that much of the random beginning is over."""
        begun = self.desk.budget.random_batches(self.batch_frames)
        self.pace.random_batches = max(0, begun - frames // self.batch_frames)

    def drop_in_flight(self) -> None:
        """The run is over: forget episodes that wait for a batch; they are counted."""
        with self.desk.lock:
            self._drop_whole(None)

    def close(self, timeout: float) -> None:
        """End the collection, its workers and their places; `timeout` seconds for their farewells.

        Raises:
            Exception: what closing an env raised; more of them are in its notes.
        """
        raised: list[BaseException] = []
        self.gate.halted = True
        self.desk.fleet.wake()
        self.gate.close(timeout, lambda: raised.extend(self.desk.fleet.close(timeout)))
        if raised:
            for other in raised[1:]:
                raised[0].add_note(f"another worker raised, too: {other!r}")
            raise raised[0]

    def _deliver(self) -> Drawn:
        shares, bodies = self._shares()
        if shares is None:
            return Drawn(None, ended=True)
        try:
            made = self.making.parts(bodies) if self.buffer is not None else [self.making.batch(bodies)]
            self._release(shares)
            return self._delivery.deliver_all([self.shaper.placed(one) for one in made])
        finally:
            self._done(shares)

    def _deliver_whole(self, whole: WholeEpisodes) -> Drawn:
        while True:
            with self.desk.lock:
                batch = whole.take()
            if batch is not None:
                return self._delivery.deliver(batch)
            shares, bodies = self._shares()
            if shares is None:
                return Drawn(None, ended=True)
            try:
                parts = [self.shaper.placed(part) for part in self.making.parts(bodies)]
                with self.desk.lock:
                    whole.add({share.worker: part for share, part in zip(shares, parts, strict=True)})
                self._release(shares)
            finally:
                self._done(shares)

    def _shares(self) -> tuple[list[Sent] | None, list[Any]]:
        """What makes up the next batch, and the arrays of it, which may be views."""
        while True:
            with self.desk.lock:
                self.gather.begin()
            shares = self.gather.next(lambda: self.gate.halted)
            if shares is None:
                return None, []
            bodies = [self.desk.opened(share) for share in shares]
            lost = next((share for share, body in zip(shares, bodies, strict=True) if body is None), None)
            if lost is None:
                return shares, bodies
            with self.desk.lock:
                self.gather.again(shares, lost)

    def _release(self, shares: Sequence[Sent]) -> None:
        """The shares are copied: their memory goes back, and their workers are asked for more."""
        with self.desk.lock:
            for share in shares:
                share.taken = True
                if share.received is not None:
                    share.received.close()
            self.gather.ahead()

    def _done(self, shares: Sequence[Sent]) -> None:
        with self.desk.lock:
            for share in shares:
                self.desk.close(share)

    def _drop_whole(self, workers: list[int] | None) -> None:
        if self.whole is not None:
            for worker in [None] if workers is None else workers:
                self.whole.drop(worker)


def _is_lost(ticket: Ticket) -> bool:
    return isinstance(ticket.outcome, Error) and isinstance(ticket.outcome.exception, WorkerLost)
