"""Asynchronous batches: one fragment after another, as they are ready."""

from __future__ import annotations

from collections.abc import Collection

from swath.collect.books import Sent
from swath.collect.desk import Desk
from swath.collect.gather import Interrupted, Pace, wait_for


class FirstOf:
    """Gathers fragments as they are ready.

    Args:
        desk: asks the workers.
        pace: how far ahead, and how old.
    """

    def __init__(self, desk: Desk, pace: Pace) -> None:
        self._desk, self._pace = desk, pace
        self._insisting: set[int] = set()
        self._served: dict[int, int] = {}
        self._turn = 0

    def ahead(self) -> None:
        """A fragment is about to be handed out: its worker and others that may be asked are asked."""
        self._fill(self._pace.prefetch)

    def next(self, interrupted: Interrupted) -> list[Sent] | None:
        """The next fragment; `None` if there is nothing to wait for.

        Raises:
            Closed: interrupted.
            FleetFailed: too few workers are left, and nothing is ready.
            Exception: what user code raised.
        """
        desk = self._desk
        while True:
            seen = desk.news
            with desk.lock:
                self._settle()
                chosen = self._choose()
                if chosen is not None:
                    return [chosen]
                desk.require_enough()
                self._fill(max(self._pace.prefetch, 1))
                tickets = [sent.ticket for sent in desk.wanted() if sent.received is None]
                if not tickets and not desk.may_ask:
                    return None
            wait_for(desk, tickets, interrupted, seen)

    def clear_up(self) -> None:
        """Whatever is out is wanted, whoever has asked for it."""

    def again(self, lost: Collection[Sent]) -> None:
        """The fragment that was given last is lost: its worker is asked again as any other."""
        for sent in lost:
            self._miss(sent)

    def forget(self, workers: Collection[int] | None = None) -> None:
        """What these workers, or all, were asked for is not wanted any more."""
        for sent in self._desk.void(workers):
            if not sent.taken:  # else it is delivered, or given back by `again`
                self._miss(sent)

    def _fill(self, most: int) -> None:
        """Ask every worker for so many fragments, in turn."""
        out = self._desk.out_by_worker()
        for number in range(1, most + 1):
            for worker in self._desk.fleet.up:
                if out[worker] < number and self._desk.may_ask:
                    self._ask(worker)
                    out[worker] += 1

    def _ask(self, worker: int) -> None:
        insisted = worker in self._insisting
        self._desk.renew([worker])
        self._desk.ask(worker, self._desk.frames[worker], randomly=self._pace.next_is_random(), insisted=insisted)
        self._insisting.discard(worker)

    def _settle(self) -> None:
        """Book what is in, in the order in which it was asked for."""
        done = [sent for sent in self._desk.wanted() if sent.is_done]
        if done:
            self._desk.sweep()
        for sent in done:
            try:
                there = self._desk.settle(sent)
            except Exception:
                self._miss(sent)
                raise
            if not there:
                self._miss(sent)

    def _miss(self, sent: Sent) -> None:
        """Nothing came of it: what it was asked for with is for the next."""
        self._pace.random_batches += sent.randomly
        if sent.insisted:
            self._insisting.add(sent.worker)

    def _choose(self) -> Sent | None:
        """Of what is ready, the fragment whose worker was served longest ago; what is too old is asked for anew."""
        while ready := [sent for sent in self._desk.wanted() if sent.received is not None]:
            chosen = min(ready, key=lambda sent: self._served.get(sent.worker, -1))
            if not self._is_stale(chosen):
                return self._serve(chosen)
            if chosen.insisted:
                self._desk.counters.overdue()
                return self._serve(chosen)
            self._drop(chosen)
        return None

    def _serve(self, chosen: Sent) -> Sent:
        self._turn += 1
        self._served[chosen.worker] = self._turn
        chosen.taken = True
        return chosen

    def _is_stale(self, sent: Sent) -> bool:
        most, version = self._pace.max_staleness, sent.head.version
        if most is None or sent.randomly or version < 0:
            return False
        return self._desk.channel.version_for(sent.worker) - version > most

    def _drop(self, sent: Sent) -> None:
        self._desk.drop(sent)
        self._insisting.add(sent.worker)
        if sent.worker in self._desk.fleet.up and self._desk.may_ask:
            self._ask(sent.worker)
