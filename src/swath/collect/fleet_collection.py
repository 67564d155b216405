"""The service behind the collectors with many workers: a group of them, a way to gather, and a way to deliver.

draw ─▶ gather (InOrder | AsReady) ─▶ bodies opened ─▶ the next are asked for ─▶ one copy into a batch ─▶ delivered
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from swath.collect.books import FragmentBooks, head_of
from swath.collect.collection import Drawing
from swath.collect.counters import Counters
from swath.collect.plan import FragmentPlan
from swath.collect.shaping import Drawn, Part, Shaper
from swath.collect.whole import Polls, WholeEpisodes
from swath.errors import FleetFailed, PayloadLost
from swath.group.gather import Gather
from swath.group.group import WorkerGroup
from swath.group.request import Request
from swath.options import Budget
from swath.rollout.episodes.statistics import joined


@dataclass(frozen=True)
class Making:
    """How bodies become a batch, in memory of the user's own, where batches live.

    Attributes:
        batch: makes one batch of the bodies of its shares; they may be views.
        parts: makes of each share what is written to a replay buffer at a time.
    """

    batch: Callable[[Sequence[Request], Sequence[Any]], Any]
    parts: Callable[[Sequence[Request], Sequence[Any]], list[Any]]


@dataclass
class FleetCollection(Drawing):
    """Draws from many workers. Any thread may call; one draws at a time.

    Attributes:
        group: the workers, and what they were asked for.
        plan: what they are to be asked for.
        gather: decides who is asked next.
        making: how bodies become batches.
        shaper: what happens to batches on their way out.
        budget: how much to collect.
        batch_frames: frames of a batch.
        counters: of what was delivered.
        buffer: where batches are written, if anywhere.
        written_there: workers write for themselves.
        name: of the face, for messages.
    """

    group: WorkerGroup
    plan: FragmentPlan
    gather: Gather
    making: Making
    shaper: Shaper
    budget: Budget
    batch_frames: int
    counters: Counters
    buffer: Any = None
    written_there: bool = False
    name: str = "collector"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.changing = threading.RLock()  # held by who adds workers, which takes long
        self._polls = None if self.whole is None else Polls()
        if self.written_there:
            self.whole = None
        if self.whole is not None:
            self.books.skip = self.whole.skip
        self._further_writes = 0

    @property
    def books(self) -> FragmentBooks:
        """What is known of the workers."""
        return self.plan.books

    @property
    def calls(self) -> WorkerGroup:
        """The workers, to be called between two fragments.

        Raises:
            Closed: after shutdown.
        """
        self.gate.require_open()
        return self.group

    @property
    def version(self) -> int:
        """The newest version that was published."""
        return self.group.channel.version

    @property
    def in_flight(self) -> bool:
        """Whether there is something that was asked for and is not delivered."""
        with self.group.lock:
            return bool(self.group.wanted())

    def hold(self) -> None:
        """Ask for no more from now on: draws give what is in flight, and then end."""
        self.group.held = True

    def release(self) -> None:
        """Go on asking."""
        self.group.held = False
        self.group.fleet.wake()

    def forget(self, workers: Collection[int] | None = None) -> None:
        """What is in flight or half-built of all workers, or of these, is dropped and counted."""
        with self.group.lock:
            self.gather.forget(workers)
            if self.whole is not None:
                for worker in [None] if workers is None else workers:
                    self.whole.drop(worker)

    @contextmanager
    def forgetting(self, workers: Collection[int] | None = None) -> Iterator[None]:
        """Calls sent within come after what is dropped, and before whatever is asked for later."""
        self.gate.require_open()
        with self.group.lock:
            self.forget(workers)
            yield

    def skip_random(self, frames: int) -> None:
        """As many frames have been collected before: that much of the random beginning is over."""
        begun = self.budget.random_batches(self.batch_frames)
        self.plan.random_batches = max(0, begun - frames // self.batch_frames)

    def be_random(self, randomly: bool) -> None:
        """Let batches be random from now on, or no more; what is in flight is dropped if it is not so."""
        if randomly != (self.plan.random_batches > 0):
            self.forget()
            self.plan.random_batches = sys.maxsize if randomly else 0

    def close(self, timeout: float) -> None:
        """End the collection, its workers and their places; `timeout` seconds for their farewells.

        Fragments in flight end at their workers' next step, where that is possible.

        Raises:
            Exception: what closing an env raised; more of them are in its notes.
        """
        raised: list[BaseException] = []
        self.gate.halted = True
        self.plan.end_all()
        self.group.fleet.wake()
        self.gate.close(timeout, lambda: raised.extend(self._closed(timeout)))
        if raised:
            for other in raised[1:]:
                raised[0].add_note(f"another worker raised, too: {other!r}")
            raise raised[0]

    def _closed(self, timeout: float) -> list[BaseException]:
        """What closing the workers raised."""
        try:
            return self.group.fleet.close(timeout)
        finally:
            self.forget()
            self.group.sweep()
            self.books.end()
            self.plan.bell = None

    def _end_of_run(self) -> None:
        self.forget()

    def _next(self) -> Drawn:
        with self.group.lock:  # what an interrupted draw had in hand is lost; Ctrl-C may come at any moment
            self._done([request for request in self.group.out if request.taken], good=False)
        self.plan.renewal.at_draw()
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
            with self.group.lock:
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
            with self.group.lock:
                written = [head.written for share in shares if (head := head_of(share)).written is not None]
                times = sum(one.times for one in written)
                if self._polls is not None:
                    frames = sum(head_of(share).frames for share in shares)
                    self._polls.note(frames, finished=any(head_of(share).packed for share in shares))
                self._further_writes = times if self._polls is not None else 1
                self._done(shares, good=False)  # which counts what was written, also if nobody can be asked any more
                self.gather.done()
                self.gather.ask_ahead()
        self._further_writes -= 1
        self.counters.deliver(0)
        return Drawn(None)

    def _made(
        self,
        shares: Sequence[Request],
        make: Callable[[Sequence[Request], Sequence[Any]], list[Part]],
        whole: WholeEpisodes | None = None,
    ) -> list[Part] | None:
        """What is made of these shares, in memory of the user's own; their workers are asked for more before that.

        `None` if some are lost, or have become unwanted meanwhile: these are asked for again.
        """
        try:
            bodies = [self._opened(share) for share in shares]
            with self.group.lock:
                if self._put_back(shares):
                    return None
                self.gather.ask_ahead()
            made = make(shares, bodies)
            with self.group.lock:
                if self._put_back(shares):
                    return None
                self.gather.done()
                if whole is not None:
                    _add(whole, shares, made)
                    self._forget_gone(whole)
                for share in shares:
                    share.reply.close()
                return made
        except BaseException:
            self._done(shares, good=False)
            raise

    def _opened(self, share: Request) -> Any:
        """The arrays of a fragment, views that are good until it is closed; `None` if its store has lost them."""
        try:
            return share.reply.open()
        except PayloadLost:
            with self.group.lock:
                self.books.gone(share)
                self.group.close(share)
            return None

    def _batch(self, shares: Sequence[Request], bodies: Sequence[Any]) -> list[Part]:
        episodes = joined(head_of(share).episodes for share in shares)
        return [Part(self.making.batch(shares, bodies), episodes)]

    def _parts(self, shares: Sequence[Request], bodies: Sequence[Any]) -> list[Part]:
        made = self.making.parts(shares, bodies)
        return [Part(batch, head_of(share).episodes) for batch, share in zip(made, shares, strict=True)]

    def _put_back(self, shares: Sequence[Request]) -> bool:
        """Whether some of these are lost, or not wanted any more; the others come again."""
        gone = [share for share in shares if share.closed or share.dropped]
        for share in gone:
            self.group.discard(share)
        if gone:
            self.gather.put_back(gone)
        return bool(gone)

    def _done(self, shares: Sequence[Request], *, good: bool = True) -> None:
        """They are delivered, or kept for whole episodes; if they are not `good`, nobody will get them."""
        with self.group.lock:
            for share in shares:
                (self.group.close if good else self.group.discard)(share)

    def _forget_gone(self, whole: WholeEpisodes) -> None:
        """Episodes of workers that were given up will have no end."""
        for worker, standing in self.group.fleet.standings().items():
            if standing.phase == "gone" and not self.group.out_by_worker()[worker]:
                whole.drop_open(worker)

    def _is_halted(self) -> bool:
        return self.gate.halted


def _add(whole: WholeEpisodes, shares: Sequence[Request], parts: Sequence[Part]) -> None:
    """Fragments that were made side by side; those of one worker one after another, as they were made."""
    rounds: list[dict[int, tuple[Request, Part]]] = []
    for share, part in sorted(zip(shares, parts, strict=True), key=lambda pair: pair[0].number):
        place = sum(share.worker in one for one in rounds)
        if place == len(rounds):
            rounds.append({})
        rounds[place][share.worker] = share, part
    for one in rounds:
        for worker, (share, _) in one.items():
            whole.skip(worker, head_of(share).gap)
        whole.add({worker: part for worker, (_, part) in one.items()})
