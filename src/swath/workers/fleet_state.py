"""The state of all workers of a fleet: who lives, who comes back and when, and when too few are left.

    waiting ──started──▶ starting ──ready──▶ up
       ▲                  │ died            │ died
       └── next life ─────┴─────────────────┴── no more lives, or no place to live ──▶ gone

A death counts against `Restarts`, whatever its cause. The time that a life waits for a place does not count: only other
programs can make room. It is reported once a minute.

A pure state machine: events go in and due actions come out, with time as an argument. It has no process, clock or
thread. One thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from swath.options import Survival
from swath.workers.tickets import Name

Phase = Literal["waiting", "starting", "up", "gone"]
FIRST_LIFE = Name(0, 0)
REPORT_S = 60.0
"""How often lives are reported that wait for a place, in seconds."""


@dataclass(frozen=True)
class WorkerStatus:
    """The status of one worker.

    Attributes:
        life: number of its life; the next one while it waits.
        phase: phase of that life.
        since: start of the phase, or of the last report; for a waiting life, the end of the phase.
        restarts: restarts that count against the worker.
        placed: whether a starting life has its place.
    """

    life: int = 0
    phase: Phase = "waiting"
    since: float = -inf
    restarts: int = 0
    placed: bool = False

    @property
    def summary(self) -> str:
        """Return `"starting"`, `"up"`, `"restarting"` or `"gone"`."""
        is_restarting = self.phase == "waiting" or (self.phase == "starting" and self.life > 0)
        return "restarting" if is_restarting else self.phase


class FleetState:
    """The lives of `n` workers, which wait to be started.

    Args:
        n: number of workers.
        survival: how often workers are replaced, and how many are needed.
        first: index of the first worker; the others follow.

    Attributes:
        workers: the status of every worker that ever was, by index.
        restarts: number of lives so far that replaced others.
        causes: once too few workers are left: why each lost worker died, in order.
    """

    def __init__(self, n: int, survival: Survival, first: int = 0) -> None:
        self.workers = {worker: WorkerStatus() for worker in range(first, first + n)}
        self.restarts = 0
        self.causes: tuple[BaseException, ...] | None = None
        self._survival = survival
        self._first = first
        self._deaths: list[tuple[int, BaseException]] = []
        self._counted_restarts = 0  # against `max_total`
        self._due_at: float | None = None  # None: to be computed

    @property
    def next_index(self) -> int:
        """Return the index of the next worker to be added."""
        return self._first + len(self.workers)

    @property
    def required(self) -> int:
        """Return the smallest number of workers with which the run goes on."""
        return self._survival.min_workers or len(self.workers)

    @property
    def remaining(self) -> int:
        """Return the number of workers that live or come back."""
        return sum(status.phase != "gone" for status in self.workers.values())

    def comes_back(self, worker: int) -> bool:
        """Return whether this worker cannot be called now but will be later."""
        phase = self.workers[worker].phase
        return phase == "starting" or (phase == "waiting" and self.causes is None)

    def is_alive(self, name: Name) -> bool:
        """Return whether this life has started and not ended."""
        status = self.workers.get(name.worker)
        return status is not None and status.life == name.life and status.phase in ("starting", "up")

    # Due actions

    @property
    def due_at(self) -> float:
        """Return the time of the next action, `inf` for none, unless an event comes first."""
        if self._due_at is None:
            self._due_at = min(map(self._deadline, self.workers.values()), default=inf)
        return self._due_at

    def due(self, phase: Phase, now: float) -> list[Name]:
        """Return the lives in this phase whose time is over: start those that wait, end those that are starting."""
        return [
            Name(worker, status.life)
            for worker, status in self.workers.items()
            if status.phase == phase and self._deadline(status) <= now
        ]

    def waits_for_room(self, name: Name) -> bool:
        """Return whether a late life may go on waiting for its place."""
        return self._survival.waits_for_room and not self.workers[name.worker].placed

    # Events

    def started(self, name: Name, now: float) -> None:
        """Record that a life was started, or that its wait for a place was reported."""
        self._set(name.worker, replace(self.workers[name.worker], phase="starting", since=now, placed=False))

    def placed(self, name: Name, now: float) -> None:
        """Record that a starting life has its place; its time to be ready begins now."""
        self._set(name.worker, replace(self.workers[name.worker], placed=True, since=now))

    def ready(self, name: Name, now: float) -> None:
        """Record that a starting life can be called."""
        self._set(name.worker, replace(self.workers[name.worker], phase="up", since=now))

    def died(self, name: Name, cause: BaseException, now: float, *, last: bool = False) -> None:
        """Record the death of a life; `last` forbids another one, however many the worker may have."""
        worker, status, limits = name.worker, self.workers[name.worker], self._survival.restarts
        forgive_after_s, restarts = limits.forgive_after_s, status.restarts
        if forgive_after_s is not None and status.phase == "up" and now - status.since >= forgive_after_s:
            self._deaths, restarts = [death for death in self._deaths if death[0] != worker], 0
        self._deaths.append((worker, cause))
        within_total = limits.max_total is None or self._counted_restarts < limits.max_total
        if self.causes is None and within_total and restarts < limits.max_per_worker and not last:
            self.restarts += 1
            self._counted_restarts += 1
            since = now + limits.delay(restarts + 1)
            self._set(worker, WorkerStatus(name.life + 1, "waiting", since, restarts + 1))
        else:
            self._set(worker, replace(status, phase="gone", since=now, restarts=restarts))
            if self.causes is None and self.remaining < self.required:
                self.causes = tuple(cause for dead, cause in self._deaths if self.workers[dead].phase == "gone")

    def added(self, now: float) -> None:
        """Record that a worker with the next index was added and is up."""
        self.workers[self.next_index] = WorkerStatus(phase="up", since=now)

    def retired(self, worker: int, now: float) -> None:
        """Record that a worker was retired: it has no further life, and no death is counted."""
        self._set(worker, replace(self.workers[worker], phase="gone", since=now))

    def forgive(self) -> None:
        """Stop counting the restarts so far."""
        self._counted_restarts = 0
        given_up = {worker for worker, status in self.workers.items() if status.phase == "gone"}
        self._deaths = [death for death in self._deaths if death[0] in given_up]
        for worker in self.workers.keys() - given_up:
            self._set(worker, replace(self.workers[worker], restarts=0))

    def _set(self, worker: int, status: WorkerStatus) -> None:
        self.workers[worker], self._due_at = status, None

    def _deadline(self, status: WorkerStatus) -> float:
        """Return the time of the next action for a worker without further events."""
        if status.phase == "waiting" and self.causes is None:
            return status.since
        survival = self._survival
        if status.phase == "starting" and survival.waits_for_room and not status.placed:
            return status.since + REPORT_S
        if status.phase != "starting" or status.life == 0:
            return inf
        limit = survival.start_timeout_s if status.placed else None
        limit = survival.placement_timeout_s if limit is None else limit
        return inf if limit is None else status.since + limit
