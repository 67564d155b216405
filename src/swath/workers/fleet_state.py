"""Who lives, who comes back and when, and when too few are left.

    waiting ──begun──▶ starting ──ready──▶ up
       ▲                  │ died            │ died
       └── next life ─────┴─────────────────┴── no more lives, or no place to live ──▶ gone

A death counts against `Restarts`, whatever its cause. The time that a life waits for a place does not: there is no room
until somebody makes some. That is only reported, once a minute.

Pure: it is reported what has happened, and asked what is due, with time as an argument; no process, no clock, no
thread. One thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from swath.options import Survival
from swath.workers.tickets import Name

Phase = Literal["waiting", "starting", "up", "gone"]
FIRST = Name(0, 0)
REPORT_S = 60.0
"""How often lives are reported that wait for a place, in seconds."""


@dataclass(frozen=True)
class Standing:
    """What is known of one worker.

    Attributes:
        life: which of its lives; of one that waits, the next.
        phase: where it is.
        since: when the phase began, or was reported; of one that waits, when it ends.
        restarts: that count against it.
        placed: whether one that is starting has begun.
    """

    life: int = 0
    phase: Phase = "waiting"
    since: float = -inf
    restarts: int = 0
    placed: bool = False

    @property
    def words(self) -> str:
        """`"starting"`, `"up"`, `"restarting"` or `"gone"`."""
        coming_back = self.phase == "waiting" or (self.phase == "starting" and self.life > 0)
        return "restarting" if coming_back else self.phase


class FleetState:
    """The lives of `n` workers, which wait to be begun.

    Args:
        n: how many.
        survival: how often they are replaced, and how many are needed.
        first: the index of the first; the others follow.

    Attributes:
        workers: all there ever were, by index.
        restarts: lives that replace others, so far.
        causes: once too few are left: of the deaths of those that are gone, in their order.
    """

    def __init__(self, n: int, survival: Survival, first: int = 0) -> None:
        self.workers = {worker: Standing() for worker in range(first, first + n)}
        self.restarts = 0
        self.causes: tuple[BaseException, ...] | None = None
        self._survival = survival
        self._first = first
        self._deaths: list[tuple[int, BaseException]] = []
        self._spent = 0  # of the restarts that count against all
        self._due_at: float | None = None  # None: to be computed

    @property
    def next_index(self) -> int:
        """Of the worker that is added next."""
        return self._first + len(self.workers)

    @property
    def required(self) -> int:
        """With fewer the run ends."""
        return self._survival.min_workers or len(self.workers)

    @property
    def left(self) -> int:
        """How many live or are coming back."""
        return sum(standing.phase != "gone" for standing in self.workers.values())

    def comes_back(self, worker: int) -> bool:
        """Whether this worker cannot be called now, but will be."""
        phase = self.workers[worker].phase
        return phase == "starting" or (phase == "waiting" and self.causes is None)

    def lives(self, name: Name) -> bool:
        """Whether this life has been begun and is not over."""
        standing = self.workers.get(name.worker)
        return standing is not None and standing.life == name.life and standing.phase in ("starting", "up")

    # What is due

    @property
    def due_at(self) -> float:
        """When there is something to be begun, ended or reported, unless something happens before; perhaps never."""
        if self._due_at is None:
            self._due_at = min(map(self._deadline, self.workers.values()), default=inf)
        return self._due_at

    def due(self, phase: Phase, now: float) -> list[Name]:
        """Lives in this phase whose time is over: one that waits is to be begun, one that is starting is late."""
        workers = self.workers.items()
        return [Name(worker, one.life) for worker, one in workers if one.phase == phase and self._deadline(one) <= now]

    def waits_for_room(self, name: Name) -> bool:
        """Whether a life that is late may wait for its place; else it is to be ended."""
        return self._survival.waits_for_room and not self.workers[name.worker].placed

    # What has happened

    def begun(self, name: Name, now: float) -> None:
        """A life is on its way to a place, or it has been reported that it is."""
        self._set(name.worker, replace(self.workers[name.worker], phase="starting", since=now, placed=False))

    def placed(self, name: Name, now: float) -> None:
        """A life that is starting has found its place; its time to be ready counts from now on."""
        self._set(name.worker, replace(self.workers[name.worker], placed=True, since=now))

    def ready(self, name: Name, now: float) -> None:
        """A life that was starting can be called from now on."""
        self._set(name.worker, replace(self.workers[name.worker], phase="up", since=now))

    def died(self, name: Name, cause: BaseException, now: float, *, last: bool = False) -> None:
        """A life that was begun is over; whether it is to be the last of its worker, however many there may be."""
        worker, standing, most = name.worker, self.workers[name.worker], self._survival.restarts
        enough, restarts = most.forgive_after_s, standing.restarts
        if enough is not None and standing.phase == "up" and now - standing.since >= enough:
            self._deaths, restarts = [death for death in self._deaths if death[0] != worker], 0
        self._deaths.append((worker, cause))
        within_total = most.max_total is None or self._spent < most.max_total
        if self.causes is None and within_total and restarts < most.max_per_worker and not last:
            self.restarts += 1
            self._spent += 1
            self._set(worker, Standing(name.life + 1, "waiting", now + most.delay(restarts + 1), restarts + 1))
        else:
            self._set(worker, replace(standing, phase="gone", since=now, restarts=restarts))
            self._count_left()

    def added(self, now: float) -> None:
        """One worker more, with the next index, is up."""
        self.workers[self.next_index] = Standing(phase="up", since=now)

    def retired(self, worker: int, now: float) -> None:
        """A worker is to have no further life; that counts against nobody."""
        self._set(worker, replace(self.workers[worker], phase="gone", since=now))

    def forgiven(self) -> None:
        """Restarts so far count against nobody."""
        self._spent = 0
        gone = {worker for worker, standing in self.workers.items() if standing.phase == "gone"}
        self._deaths = [death for death in self._deaths if death[0] in gone]
        for worker in self.workers.keys() - gone:
            self._set(worker, replace(self.workers[worker], restarts=0))

    def _set(self, worker: int, standing: Standing) -> None:
        self.workers[worker], self._due_at = standing, None

    def _count_left(self) -> None:
        if self.causes is None and self.left < self.required:
            self.causes = tuple(cause for worker, cause in self._deaths if self.workers[worker].phase == "gone")
            self._due_at = None

    def _deadline(self, standing: Standing) -> float:
        """When something is to be done about a worker if nothing happens to it before."""
        if standing.phase == "waiting" and self.causes is None:
            return standing.since
        survival = self._survival
        if standing.phase == "starting" and survival.waits_for_room and not standing.placed:
            return standing.since + REPORT_S
        if standing.phase != "starting" or standing.life == 0:
            return inf
        patience = survival.start_timeout_s if standing.placed else None
        patience = survival.placement_timeout_s if patience is None else patience
        return inf if patience is None else standing.since + patience
