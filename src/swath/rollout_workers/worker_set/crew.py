"""The remote workers of a set: told what is new before they are asked anything, looked after whenever somebody waits.

    send(worker, method) ─▶ late? behind? ─ bring ─▶ fleet.call ─▶ Ticket ─▶ wait_all ─▶ answers
                                                                            │ meanwhile: tend
    a life is up ─▶ tend: bring all ─▶ answered ─▶ told of                  ┘

Used by one thread at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from swath.collect.counters import Counters
from swath.errors import PlacementFailed, WorkerLate, WorkerLost
from swath.options import Survival
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.worker_set.deaths import Deaths, Events
from swath.rollout_workers.worker_set.resident import AS_BUILT, Household, News, NotBrought
from swath.weights.channel import Channel
from swath.workers.base import Backend, Job
from swath.workers.fleet import Fleet
from swath.workers.outcome import Error
from swath.workers.tickets import Name, Ticket


@dataclass
class Bringing:
    """News on their way to a worker.

    Attributes:
        ticket: of the call that brings them.
        version: of the weights that it has then.
    """

    ticket: Ticket
    version: int


@dataclass
class Berth:
    """One life of a worker.

    Attributes:
        name: which.
        begun: whether it was told anything.
        settled: whether it has taken in what its life begins with.
        revision: of the set's policies, as it was told; -1 before it was told any.
        vars_serial: of the set's global variables, likewise; 0 before it was told any.
        version: of the weights that it has.
        bringing: news that it has not answered, oldest first.
        refusal: what it raised at the last, if it did.
        late: calls that somebody has stopped waiting for, and that it has not answered.
    """

    name: Name
    begun: bool = False
    settled: bool = False
    revision: int = -1
    vars_serial: int = 0
    version: int = 0
    bringing: list[Bringing] = field(default_factory=list)
    refusal: BaseException | None = None
    late: list[Ticket] = field(default_factory=list)

    @property
    def is_late(self) -> bool:
        """Whether it owes an answer that nobody waits for any more."""
        self.late = [ticket for ticket in self.late if not ticket.done]
        return bool(self.late)

    def forget(self) -> None:
        """What it was told did not arrive: it is to be told all again."""
        self.revision, self.vars_serial = -1, 0


@dataclass(frozen=True)
class Terms:
    """How a set has its workers.

    Attributes:
        job: how each life is begun.
        survival: what is done about deaths.
        config: the settings.
        returned: called with the ids of workers that came back, and know what is new.
        filters: what a worker that comes back, or comes later, begins with; None where nobody has any.
        counters: of what is handed out, and of the time that callers wait.
    """

    job: Callable[[Name], Job]
    survival: Survival
    config: AlgorithmConfig
    returned: Callable[[list[int]], None]
    filters: Callable[[], Mapping[str, Any] | None]
    counters: Counters


class Crew:
    """Remote workers, by ids from 1.

    Args:
        backend: where they live; the crew's own.
        terms: how to have them.
        begun: how many are begun at once and not waited for.

    Attributes:
        backend: as given.
        fleet: the workers.
        channel: their weights.
        events: what has happened to them.
        counters: of what was handed out.
        frames: env steps of fragments, by worker.
        fragments_lost: that were asked for and did not come.
        household: what they are told of policies.
        removed: ids of workers that were taken out.
    """

    def __init__(self, backend: Backend, terms: Terms, begun: int = 0) -> None:
        self.backend = backend
        self.fleet = Fleet(backend, terms.job, begun, terms.survival, first=1)
        self.channel = Channel(backend.share)
        self.events = Events()
        self.counters = terms.counters
        self.frames: Counter[int] = Counter()
        self.fragments_lost = 0
        self.household: Household = AS_BUILT
        self.removed: set[int] = set()
        self.deaths = Deaths(terms.config, self.events, self.fleet.late)
        self.fleet.listener = self.deaths
        self._terms = terms
        self._berths: dict[int, Berth] = {}
        self._global_vars: dict[str, Any] = {}
        self._vars_serial = 0

    def ids(self) -> list[int]:
        """Of all workers that live or are coming back."""
        standings = self.fleet.standings().items()
        return [worker for worker, standing in standings if standing.phase != "gone"]

    def up(self) -> list[int]:
        """Of those that can be called."""
        return sorted(self.fleet.up)

    def coming(self, workers: Iterable[int]) -> list[int]:
        """Those of these that cannot be called now, but will be."""
        standings = self.fleet.standings()
        return [each for each in workers if each in standings and standings[each].phase in ("starting", "waiting")]

    def add(self, n: int) -> tuple[int, ...]:
        """Bring up more workers, told all that is new.

        Raises:
            WorkerLate: some were not ready in time.
            Exception: what building one raised. In both cases none is added.
        """
        try:
            added = self.fleet.add(n)
        except PlacementFailed as failure:
            late = self._terms.survival.placement_timeout_s
            raise WorkerLate(f"{failure}; all are ended", deadline=late) from failure
        self.tend()
        return added

    def retire(self, worker: int) -> None:
        """End a worker for good."""
        self.removed.add(worker)
        self.fleet.retire(worker)
        self.channel.left(worker)
        self._berths.pop(worker, None)

    def tend(self) -> None:
        """Take note of what has happened; have workers that came back told all."""
        self.fleet.look()
        returned = []
        for worker, handle in self.fleet.up.items():
            berth = self._berth(worker, handle.name)
            if not berth.begun:
                self._bring(berth)
            before = berth.settled
            self._note_brought(berth)
            if berth.settled and not before and berth.name.life:
                returned.append(worker)
        if returned:
            self._terms.returned(sorted(returned))

    def take_back(self, before: Household) -> None:
        """Hold to what was said of policies before, if no worker has taken in what was said since."""
        if all(berth.revision <= before.revision for berth in self._berths.values()):
            self.household = before

    def is_free(self, worker: int) -> bool:
        """Whether it can be called, and nobody has stopped waiting for it."""
        handle = self.fleet.up.get(worker)
        return handle is not None and not self._berth(worker, handle.name).is_late

    def owed(self, worker: int) -> list[Ticket]:
        """Calls that a worker is late with."""
        berth = self._berths.get(worker)
        return berth.late if berth is not None and berth.is_late else []

    def send(self, worker: int, method: str, *args: Any) -> Ticket:
        """Send a call to a worker that is free; it knows all that is new when it comes to it."""
        self.bring(worker)
        return self.fleet.call(self.fleet.up[worker], method, *args, late=True)

    def bring(self, worker: int) -> Ticket | None:
        """Tell a worker that is free what is new; the call with which it knows, None if it does."""
        berth = self._berth(worker, self.fleet.up[worker].name)
        self._bring(berth)
        return berth.bringing[-1].ticket if berth.bringing else None

    def applied(self) -> dict[int, int]:
        """Versions of the weights that workers are known to have, once what has happened is noted."""
        self.tend()
        return self.known_versions()

    def known_versions(self) -> dict[int, int]:
        """The same as far as it is known; any thread may call it."""
        berths = {**self._berths}
        return {worker: berths[worker].version if worker in berths else 0 for worker in self.ids()}

    def poll(self, tickets: Sequence[Ticket]) -> None:
        """Have what is there taken note of, without waiting."""
        self.backend.wait(tickets, 0.0)
        self.fleet.look()
        self.tend()

    def wait(self, tickets: Sequence[Ticket], timeout: float) -> None:
        """Wait until one of these is answered, or there is other news.

        Raises:
            FleetFailed: too few are left, or too many died in a row.
        """
        if not any(ticket.done for ticket in tickets):
            began = monotonic()
            try:
                self.fleet.wait([*tickets, *self._on_their_way()], timeout)
            finally:
                self.counters.seconds_waiting += monotonic() - began
        self.tend()
        self.deaths.require_few()

    def wait_for(self, workers: Iterable[int], timeout: float) -> None:
        """Wait until none of these is coming back any more, or the time is over."""
        until, workers = monotonic() + timeout, list(workers)
        while self.coming(workers) and (left := until - monotonic()) > 0:
            self.wait([], left)

    def wait_settled(self, timeout: float) -> None:
        """Wait until all who can be called have taken in what their lives begin with, or the time is over."""
        first = (b.bringing for b in self._berths.values() if not b.settled)
        self.wait_all([told.ticket for bringing in first for told in bringing], monotonic() + timeout)

    def wait_all(self, tickets: Iterable[Ticket], until: float) -> list[Ticket]:
        """Wait until all are answered, or it is time; those that are not."""
        missing = [ticket for ticket in tickets if not ticket.done]
        while missing and (left := until - monotonic()) > 0:
            self.wait(missing, left)
            missing = [ticket for ticket in missing if not ticket.done]
        return missing

    def error_of(self, ticket: Ticket) -> BaseException | None:
        """What a caller is to see in place of the answer; None if there is an answer."""
        if not isinstance(ticket.outcome, Error):
            return None
        error, berth = ticket.outcome.exception, self._berths.get(ticket.name.worker)
        if isinstance(error, NotBrought) and berth is not None and berth.refusal is not None:
            return berth.refusal
        return self.deaths.seen(ticket.name, error)

    def put_global_vars(self, values: Mapping[str, Any]) -> None:
        """Newer global variables, which workers get with the next call to each."""
        self._global_vars.update(values)
        self._vars_serial += 1

    def is_borne(self, error: BaseException) -> bool:
        """Whether it is the loss of a worker, and not to be raised."""
        return self.deaths.tolerant and isinstance(error, WorkerLost)

    def set_late(self, tickets: Iterable[Ticket]) -> None:
        """Nobody waits for these any more; their workers are asked nothing before they have answered."""
        for ticket in tickets:
            berth = self._berths.get(ticket.name.worker)
            if berth is not None and berth.name == ticket.name:
                berth.late.append(ticket)
            self.events.note(ticket.name, "late", f"{ticket.method}() is not waited for any more")

    def close(self, timeout: float) -> list[BaseException]:
        """End all; what closing them raised."""
        return self.fleet.close(timeout)

    def require_borne(self) -> None:
        """Raise what is not borne, once what has happened is noted."""
        self.tend()
        if (failure := self.fleet.failure) is not None:
            raise failure
        self.deaths.require_few()
        self.deaths.require_borne()

    def _berth(self, worker: int, name: Name) -> Berth:
        berth = self._berths.get(worker)
        if berth is None or berth.name != name:
            berth = self._berths[worker] = Berth(name)
        return berth

    def _bring(self, berth: Berth) -> None:
        worker, berth.begun = berth.name.worker, True
        household = self.household if berth.revision < self.household.revision else None
        serial = self._vars_serial
        with self.channel.update_for(berth.name) as update:
            if household is None and update is None and serial == berth.vars_serial:
                return
            told = dict(self._global_vars) if serial > berth.vars_serial else None
            filters = None if berth.settled else self._terms.filters()
            news = News(update, told, household, filters)
            ticket = self.fleet.call(self.fleet.up[worker], "bring", news, late=True)
        berth.revision, berth.vars_serial = self.household.revision, serial
        berth.bringing.append(Bringing(ticket, self.channel.version_of(worker)))

    def _note_brought(self, berth: Berth) -> None:
        """Take note of what came of news that were brought."""
        done = [bringing for bringing in berth.bringing if bringing.ticket.done]
        berth.bringing = [bringing for bringing in berth.bringing if not bringing.ticket.done]
        for bringing in done:
            berth.refusal = self.error_of(bringing.ticket)
            if berth.refusal is None:
                berth.version, berth.settled = bringing.version, True
            else:
                berth.forget()
                self.channel.lost(berth.name)

    def _on_their_way(self) -> list[Ticket]:
        """News that are not answered yet."""
        told = (bringing.ticket for berth in self._berths.values() for bringing in berth.bringing)
        return [ticket for ticket in told if not ticket.done]
