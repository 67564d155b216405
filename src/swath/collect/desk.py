"""Asks workers for fragments, and knows what is out: the one place where requests are made and booked.

    ask(worker) ─▶ Sent ─(fleet.wait)─▶ settle(sent) ─▶ sent.received, until close(sent)
                                                    ├─▶ nothing: lost with its worker, to be asked for again
                                                    └─▶ raises what user code raised over there

Frames count as asked for until they are delivered, lost or discarded, so that workers are never asked for more than
is wanted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swath.collect.asks import Ask, Broken, Written
from swath.collect.books import Known, Sent
from swath.collect.counters import Counters
from swath.errors import PayloadLost, WorkerLost
from swath.options import Budget
from swath.weights.channel import Channel
from swath.weights.due import Due
from swath.weights.register import Life
from swath.workers.base import Watched
from swath.workers.fleet import Fleet
from swath.workers.outcome import Error, thawed
from swath.workers.tickets import Name, Received, Ticket


def nothing() -> None:
    """No weights come from elsewhere."""


@dataclass
class Renewal:
    """Renews weights at the start of every batch, and before a worker would use old ones for too long.

    Attributes:
        due: when the policy's weights are published.
        publish: publishes them.
        receive: takes the newest from elsewhere, if there is anything newer.
    """

    due: Due
    publish: Callable[[], None]
    receive: Callable[[], None] = nothing

    def at_draw(self) -> None:
        """The user draws; call it before workers are asked."""
        self.receive()
        if self.due.at_draw():
            self.publish()

    def before_request(self, life: Life, channel: Channel) -> None:
        """A worker is about to be asked for a fragment, with what the channel has for it."""
        if self.due.before_request(life, channel.version_for(life[0])):
            self.publish()

    def asked(self, life: Life, channel: Channel) -> None:
        """It was asked."""
        self.due.asked(life, channel.version_of(life[0]))


def _nothing(worker: int, trajectory: int) -> None:
    """Nobody puts episodes together."""


def _nobody(worker: int) -> bool:  # noqa: ARG001
    """No worker is replaced because its env raises."""
    return False


@dataclass
class Desk:
    """Requests of one collection. Its lock guards what is out; nobody waits under it.

    While it is `held`, no new batches are asked for.

    Attributes:
        fleet: the workers.
        channel: their weights.
        frames: asked of one worker at a time, by worker.
        budget: how much to collect.
        counters: of the collection.
        renewal: renews weights that were used for too long.
        replaces: whether a worker whose env raises is replaced.
        bell: numbers that workers see while they work, one each; a worker ends its fragment at its next step once its
            number has reached that of the request. `None` where nobody can end them.
        skip: called with a worker and an id when a fragment of good frames is not delivered: episodes with lower ids
            lack frames.
    """

    fleet: Fleet
    channel: Channel
    frames: Mapping[int, int]
    budget: Budget
    counters: Counters
    renewal: Renewal
    replaces: Callable[[int], bool] = _nobody
    bell: Watched | None = None
    skip: Callable[[int, int], None] = _nothing

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.known = Known()
        self.out: list[Sent] = []
        self.held = False
        self.last_number = 0

    @property
    def news(self) -> tuple[int, bool]:
        """Changes whenever workers have come or gone, or it was held or released."""
        return self.fleet.changes, self.held

    @property
    def may_ask(self) -> bool:
        """Whether more is wanted than is delivered or asked for."""
        if self.held:
            return False
        total = self.budget.total_frames
        if total is None:
            return True
        return self.counters.frames + sum(sent.frames for sent in self.out if not sent.void) < total

    def wanted(self) -> list[Sent]:
        """What is out and not being delivered, in the order in which it was asked for."""
        return [sent for sent in self.out if not (sent.void or sent.taken)]

    def out_by_worker(self) -> Counter[int]:
        """How many fragments each worker has been asked for that are made, or wait to be drawn."""
        return Counter([sent.worker for sent in self.wanted()])

    def is_gone(self, worker: int) -> bool:
        """Whether the worker was given up."""
        return self.fleet.standings()[worker].phase == "gone"

    def require_enough(self) -> None:
        """Raise `FleetFailed` if too few workers are left."""
        if (failure := self.fleet.failure) is not None:
            raise failure

    def renew(self, workers: Iterable[int]) -> None:
        """Publish newer weights first if one of these, who are about to be asked, has used its own for too long.

        Not while the channel is held steady: other threads may publish, too.
        """
        for worker in workers:
            self.renewal.before_request(self.fleet.handle(worker).name, self.channel)

    def ask(self, worker: int, frames: int, *, randomly: bool = False, insisted: bool = False) -> Sent:
        """Ask a worker that is up for one fragment, with the newest weights meant for it."""
        self.last_number += 1
        ask = Ask(frames, randomly, self.last_number, self.bell, worker)
        handle = self.fleet.handle(worker)
        with self.channel.update_for(handle.name) as update:
            ticket = self.fleet.call(handle, "collect", update, ask, late=True)
        self.renewal.asked(handle.name, self.channel)
        sent = Sent(ticket, ask.number, frames, randomly, insisted)
        self.out.append(sent)
        return sent

    def control(self, worker: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ticket:
        """Send a control call, which also brings the worker to the newest weights meant for it."""
        handle = self.fleet.handle(worker)
        with self.channel.update_for(handle.name) as update:
            return self.fleet.call(handle, "control", update, method, args, kwargs)

    def settle(self, sent: Sent) -> bool:
        """Book what a request that is done has brought; whether there is a fragment that is wanted.

        Raises:
            Exception: what user code raised in the worker, if the fragment is wanted.
        """
        outcome = sent.ticket.outcome
        assert outcome is not None
        if isinstance(outcome, Error):
            error: BaseException | None = outcome.exception
            if isinstance(error, WorkerLost):
                self.known.mourn(sent.ticket.name)
                self.counters.discard(self.known.waiting.pop(sent.ticket.name, 0))
                error = None
        elif isinstance(outcome.value, Broken):
            error = self._broken(sent.ticket.name, outcome.value)
        else:
            return self._arrived(sent, outcome.value)
        self.close(sent)
        if error is not None and not sent.void:
            raise error
        return False

    def answered(self, ticket: Ticket) -> bool:
        """Whether a control call that is done was answered; not if its worker has died, or has to be replaced.

        Raises:
            Exception: what the call raised.
        """
        if isinstance(ticket.outcome, Error) and isinstance(ticket.outcome.exception, WorkerLost):
            return False
        if isinstance(ticket.value, Broken):
            self._broken(ticket.name, ticket.value)
            return False
        return True

    def ring(self, sent: Sent) -> None:
        """Let a fragment end at its worker's next step."""
        if self.bell is not None:
            values = self.bell.values
            values[sent.worker] = max(values[sent.worker], sent.number)

    def ring_all(self) -> None:
        """Let all fragments end so, also those that will be begun."""
        if self.bell is not None:
            self.bell.values[:] = np.iinfo(np.int64).max

    def opened(self, sent: Sent) -> Any:
        """The arrays of a fragment, views that are good until it is closed; `None` if its store has lost them."""
        assert sent.received is not None
        try:
            return sent.received.open()
        except PayloadLost:
            with self.lock:
                self.known.fragments_lost += 1
                self._skip(sent)
                self.close(sent)
            return None

    def close(self, sent: Sent) -> None:
        """It is delivered, or will not be; its memory goes back. Twice is fine."""
        if sent in self.out:
            self.out.remove(sent)
        if sent.received is not None:
            sent.received.close()

    def discard(self, sent: Sent) -> None:
        """Good frames that nobody will get, or that its worker has written by now; nothing if it is closed."""
        if sent in self.out:
            written = sent.head.written
            if written is not None:
                self.counters.add(written.frames, written.episodes)
            else:
                self.counters.discard(sent.head.frames)
                self._skip(sent)
            self.close(sent)

    def drop(self, sent: Sent) -> None:
        """Good frames that are too old."""
        self.counters.drop(sent.head.frames)
        self._skip(sent)
        self.close(sent)

    def void(self, workers: Collection[int] | None = None) -> list[Sent]:
        """What is out, of all workers or of these, is not wanted any more.

        Returns:
            What was wanted until now.
        """
        gone = [sent for sent in self.out if not sent.void and (workers is None or sent.worker in workers)]
        for sent in gone:
            self.cancel(sent)
        return gone

    def cancel(self, sent: Sent) -> None:
        """It is not wanted any more; what is being delivered is left to whoever delivers it."""
        sent.void = True
        if sent.received is not None and not sent.taken:
            self.discard(sent)

    def sweep(self) -> None:
        """Settle what is done and nobody waits for any more."""
        with self.lock:
            for sent in [sent for sent in self.out if sent.void and not sent.taken and sent.ticket.done]:
                self.settle(sent)

    def end(self) -> None:
        """Nothing is wanted any more, and nobody works: let go of all memory but what is being delivered."""
        with self.lock:
            self.void()
            self.sweep()
            self.counters.discard(sum(self.known.waiting.values()))
            self.known.waiting.clear()
            self.bell = None

    def _skip(self, sent: Sent) -> None:
        self.skip(sent.worker, sent.head.next_id)

    def _arrived(self, sent: Sent, received: Received) -> bool:
        sent.received = received
        self.known.book(sent)
        self.known.lags[sent.worker] = max(0, self.channel.version_for(sent.worker) - max(0, sent.head.version))
        self._find_strays(sent)
        written = sent.head.written
        if written is not None:
            self._count_unwritten(sent, written)
        wanted = not sent.void
        if not wanted or (written is not None and written.error):
            self.discard(sent)
        if wanted and written is not None and written.error:
            self.known.fragments_lost += 1
            raise thawed(written.error)
        return wanted

    def _count_unwritten(self, sent: Sent, written: Written) -> None:
        """Frames that wait in a worker no longer and were not written by it never will be."""
        waiting, name = self.known.waiting, sent.ticket.name
        self.counters.discard(waiting.get(name, 0) + sent.head.frames - written.frames - written.waiting)
        waiting[name] = written.waiting

    def _find_strays(self, sent: Sent) -> None:
        """Fragments that came before this one and belong to no request: Ctrl-C came while they were asked for."""
        name = sent.ticket.name
        if any(one.ticket.name == name and one.number < sent.number and one.received is None for one in self.out):
            return  # one that is on its way may be what is missing
        missing = self.known.strayed(name)
        if missing and sent.head.written is not None:
            self.counters.add(missing)  # the worker has written them
        elif missing:
            self.counters.discard(missing)
            self.skip(sent.worker, sent.head.since)

    def _broken(self, name: Name, broken: Broken) -> BaseException | None:
        """Book that there is no fragment; what is to be raised for it."""
        self.known.note(name, broken.tally)
        error = thawed(broken.error)
        if not (broken.unfit or (broken.by_env and self.replaces(name.worker))):
            return error
        handle = self.fleet.handle(name.worker)
        if handle.name == name:
            self.fleet.replace(handle, error)
        return None
