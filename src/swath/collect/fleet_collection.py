"""The service behind the collectors with many workers: a fleet, a channel of weights, and a way to deliver.

draw ─▶ gather (AllOf | FirstOf) ─▶ bodies opened ─▶ the next are asked for ─▶ one copy into a batch ─▶ delivered
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from swath.collect.books import Sent
from swath.collect.collection import Drawing
from swath.collect.counters import Counters
from swath.collect.desk import Desk
from swath.collect.fleet_calls import FleetCalls
from swath.collect.gather import Gather, Pace
from swath.collect.shaping import Drawn, Part, Shaper
from swath.collect.whole import Polls, WholeEpisodes
from swath.errors import FleetFailed
from swath.options import Budget
from swath.rollout.episodes.statistics import joined


@dataclass(frozen=True)
class Making:
    """How bodies become a batch, in memory of the user's own, where batches live.

    Attributes:
        batch: makes one batch of the bodies of its shares; they may be views.
        parts: makes of each share what is written to a replay buffer at a time.
    """

    batch: Callable[[Sequence[Sent], Sequence[Any]], Any]
    parts: Callable[[Sequence[Sent], Sequence[Any]], list[Any]]


@dataclass
class FleetCollection(Drawing):
    """Draws from many workers. Any thread may call; one draws at a time.

    Attributes:
        desk: asks the workers.
        gather: decides whom.
        pace: how far ahead, and how many batches are random.
        making: how bodies become batches.
        shaper: what happens to batches on their way out.
        budget: how much to collect.
        batch_frames: frames of a batch.
        buffer: where batches are written, if anywhere.
        written_there: workers write for themselves.
        name: of the face, for messages.
    """

    desk: Desk
    gather: Gather
    pace: Pace
    making: Making
    shaper: Shaper
    budget: Budget
    batch_frames: int
    buffer: Any = None
    written_there: bool = False
    name: str = "collector"
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.calls = FleetCalls(self.gate, self.desk)
        self.changing = threading.RLock()  # held by who adds workers, which takes long
        self._polls = None if self.whole is None else Polls()
        if self.written_there:
            self.whole = None
        if self.whole is not None:
            self.desk.skip = self.whole.skip
        self._further_writes = 0

    @property
    def version(self) -> int:
        """The newest version that was published."""
        return self.desk.channel.version

    @property
    def in_flight(self) -> bool:
        """Whether there is something that was asked for and is not delivered."""
        with self.desk.lock:
            return bool(self.desk.wanted())

    def hold(self) -> None:
        """Ask for no more from now on: draws give what is in flight, and then end."""
        self.desk.held = True

    def release(self) -> None:
        """Go on asking."""
        self.desk.held = False
        self.desk.fleet.wake()

    def forget(self, workers: Collection[int] | None = None) -> None:
        """What is in flight or half-built of all workers, or of these, is dropped and counted."""
        with self.desk.lock:
            self.gather.forget(workers)
            self._drop_whole(workers)

    @contextmanager
    def forgetting(self, workers: Collection[int] | None = None) -> Iterator[None]:
        """Calls sent within come after what is dropped, and before whatever is asked for later."""
        with self.desk.lock:
            self.forget(workers)
            yield

    def skip_random(self, frames: int) -> None:
        """As many frames have been collected before: that much of the random beginning is over."""
        begun = self.budget.random_batches(self.batch_frames)
        self.pace.random_batches = max(0, begun - frames // self.batch_frames)

    def be_random(self, randomly: bool) -> None:
        """Let batches be random from now on, or no more; what is in flight is dropped if it is not so."""
        if randomly != (self.pace.random_batches > 0):
            self.forget()
            self.pace.random_batches = sys.maxsize if randomly else 0

    def close(self, timeout: float) -> None:
        """End the collection, its workers and their places; `timeout` seconds for their farewells.

        Fragments in flight end at their workers' next step, where that is possible.

        Raises:
            Exception: what closing an env raised; more of them are in its notes.
        """
        raised: list[BaseException] = []
        self.gate.halted = True
        self.desk.ring_all()
        self.desk.fleet.wake()
        self.gate.close(timeout, lambda: raised.extend(self._closed(timeout)))
        if raised:
            for other in raised[1:]:
                raised[0].add_note(f"another worker raised, too: {other!r}")
            raise raised[0]

    def _closed(self, timeout: float) -> list[BaseException]:
        """What closing the workers raised."""
        try:
            return self.desk.fleet.close(timeout)
        finally:
            self.forget()
            self.desk.end()

    def _clear_up(self) -> None:
        """What an interrupted draw had in hand is lost; Ctrl-C may come at any moment."""
        with self.desk.lock:
            self._done([sent for sent in self.desk.out if sent.taken], good=False)
            self.gather.clear_up()

    def _end_of_run(self) -> None:
        self.forget()

    def _next(self) -> Drawn:
        self._clear_up()
        self.desk.renewal.at_draw()
        try:
            if self.written_there:
                return self._deliver_written()
            return self._deliver() if self.whole is None else self._deliver_whole(self.whole)
        except FleetFailed:
            self.forget()
            raise

    def _deliver(self) -> Drawn:
        make = self._batch if self.buffer is None else self._parts
        while (shares := self.gather.next(self._is_halted)) is not None:
            made = self._made(shares, make)
            if made is not None:
                try:
                    return self._delivery.deliver_all(made)
                finally:
                    self._done(shares)
        return Drawn(None, ended=True)

    def _deliver_whole(self, whole: WholeEpisodes) -> Drawn:
        while True:
            with self.desk.lock:
                batch = whole.take()
            if batch is not None:
                return self._delivery.deliver(batch)
            shares = self.gather.next(self._is_halted)
            if shares is None:
                return Drawn(None, ended=True)
            if self._made(shares, self._parts, whole) is not None:
                self._done(shares)

    def _deliver_written(self) -> Drawn:
        """Count what workers have written; one draw per batch or fragment, or per write of whole episodes."""
        while not self._further_writes:
            shares = self.gather.next(self._is_halted)
            if shares is None:
                return Drawn(None, ended=True)
            with self.desk.lock:
                written = [share.head.written for share in shares if share.head.written is not None]
                times = sum(one.times for one in written)
                if self._polls is not None:
                    frames = sum(share.head.frames for share in shares)
                    self._polls.note(frames, finished=any(share.head.packed for share in shares))
                self._further_writes = times if self._polls is not None else 1
                self._done(shares, good=False)  # which counts what was written, also if nobody can be asked any more
                self.gather.ahead()
        self._further_writes -= 1
        self.counters.deliver(0)
        return Drawn(None)

    def _made(
        self,
        shares: Sequence[Sent],
        make: Callable[[Sequence[Sent], Sequence[Any]], list[Part]],
        whole: WholeEpisodes | None = None,
    ) -> list[Part] | None:
        """What is made of these shares, in memory of the user's own; their workers are asked for more before that.

        `None` if some are lost, or have become unwanted meanwhile: these are asked for again.
        """
        try:
            bodies = [self.desk.opened(share) for share in shares]
            lost = [share for share, body in zip(shares, bodies, strict=True) if body is None]
            with self.desk.lock:
                if self._put_back([share for share in shares if share in lost or share.void]):
                    return None
                self.gather.ahead()
            made = make(shares, bodies)
            with self.desk.lock:
                if self._put_back([share for share in shares if share.void]):
                    return None
                if whole is not None:
                    _add(whole, shares, made)
                    self._forget_gone(whole)
                for share in shares:
                    assert share.received is not None
                    share.received.close()
                return made
        except BaseException:
            self._done(shares, good=False)
            raise

    def _batch(self, shares: Sequence[Sent], bodies: Sequence[Any]) -> list[Part]:
        episodes = joined(share.head.episodes for share in shares)
        return [Part(self.making.batch(shares, bodies), episodes)]

    def _parts(self, shares: Sequence[Sent], bodies: Sequence[Any]) -> list[Part]:
        made = self.making.parts(shares, bodies)
        return [Part(batch, share.head.episodes) for batch, share in zip(made, shares, strict=True)]

    def _put_back(self, gone: Sequence[Sent]) -> bool:
        """These shares are not wanted any more, or lost; whether there are any."""
        for share in gone:
            self.desk.discard(share)
        if gone:
            self.gather.again(gone)
        return bool(gone)

    def _done(self, shares: Sequence[Sent], *, good: bool = True) -> None:
        """They are delivered, or kept for whole episodes; if they are not `good`, nobody will get them."""
        with self.desk.lock:
            for share in shares:
                (self.desk.close if good else self.desk.discard)(share)

    def _forget_gone(self, whole: WholeEpisodes) -> None:
        """Episodes of workers that were given up will have no end."""
        for worker, standing in self.desk.fleet.standings().items():
            if standing.phase == "gone" and not self.desk.out_by_worker()[worker]:
                whole.drop_open(worker)

    def _drop_whole(self, workers: Collection[int] | None) -> None:
        if self.whole is not None:
            for worker in [None] if workers is None else workers:
                self.whole.drop(worker)

    def _is_halted(self) -> bool:
        return self.gate.halted


def _add(whole: WholeEpisodes, shares: Sequence[Sent], parts: Sequence[Part]) -> None:
    """Fragments that were made side by side; those of one worker one after another, as they were made."""
    rounds: list[dict[int, tuple[Sent, Part]]] = []
    for share, part in sorted(zip(shares, parts, strict=True), key=lambda pair: pair[0].number):
        place = sum(share.worker in one for one in rounds)
        if place == len(rounds):
            rounds.append({})
        rounds[place][share.worker] = share, part
    for one in rounds:
        for worker, (share, _) in one.items():
            whole.skip(worker, share.head.gap)
        whole.add({worker: part for worker, (_, part) in one.items()})
