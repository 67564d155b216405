"""Who lives, who comes back and when, and when too few are left.

    waiting ──Start──▶ starting ──Ready──▶ up
       ▲                  │ Died            │ Died
       └── next life ─────┴─────────────────┴── no more lives, or no place to live ──▶ gone

A death counts against `Restarts`, whatever its cause. The time that a life waits for a place does not: there is no room
until somebody makes some. That is only reported, once a minute.

Pure: events in, instructions out, time as an argument; no process, no clock, no thread. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, TypeAlias

from swath.options import Survival
from swath.workers.tickets import Name

Phase = Literal["waiting", "starting", "up", "gone"]
FIRST = Name(0, 0)
REPORT_S = 60.0
"""How often lives are reported that wait for a place, in seconds."""


@dataclass(frozen=True)
class Placed:
    """A life has begun; its time to be ready counts from now on."""

    name: Name


@dataclass(frozen=True)
class Ready:
    """A life can be called from now on."""

    name: Name


@dataclass(frozen=True)
class Died:
    """A life is over."""

    name: Name
    cause: BaseException


@dataclass(frozen=True)
class PlaceGone:
    """Nothing lives any more where the workers did, and nothing can."""

    cause: BaseException


@dataclass(frozen=True)
class Added:
    """One worker more, with the next index, up already."""


@dataclass(frozen=True)
class Retired:
    """A worker is to have no further life; that counts against nobody."""

    worker: int


@dataclass(frozen=True)
class Forgiven:
    """Restarts so far count against nobody."""


@dataclass(frozen=True)
class Ticked:
    """Time has passed, and all that has happened until now was reported."""


Event: TypeAlias = Placed | Ready | Died | PlaceGone | Added | Retired | Forgiven | Ticked


@dataclass(frozen=True)
class Start:
    """Begin this life."""

    name: Name


@dataclass(frozen=True)
class Overdue:
    """This life, which replaces another, was not ready in time: end it, then report that it died."""

    name: Name


@dataclass(frozen=True)
class NoRoom:
    """These lives wait for a place, some for a minute or longer."""

    names: tuple[Name, ...]


@dataclass(frozen=True)
class GiveUp:
    """This was the worker's last life."""

    name: Name


@dataclass(frozen=True)
class Fail:
    """Too few are left.

    Attributes:
        causes: of the deaths of those that were given up, in their order.
    """

    causes: tuple[BaseException, ...]


Instruction: TypeAlias = Start | Overdue | NoRoom | GiveUp | Fail


@dataclass(frozen=True)
class Standing:
    """What is known of one worker.

    Attributes:
        life: which of its lives; of one that waits, the next.
        phase: where it is.
        since: when the phase began; of one that waits, when it ends.
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
    """The lives of `n` workers; all are to be started with the first `Ticked`.

    Args:
        n: how many.
        survival: how often they are replaced, and how many are needed.
        first: the index of the first; the others follow.

    Attributes:
        restarts: lives that replace others, so far.
        failed: whether too few are left.
        due_at: when the next `Ticked` is wanted; infinite if none is.
    """

    def __init__(self, n: int, survival: Survival, first: int = 0) -> None:
        self._survival = survival
        self._first = first
        self._workers: dict[int, Standing] = {worker: Standing() for worker in range(first, first + n)}
        self._deaths: list[tuple[int, BaseException]] = []
        self._spent = 0  # of the restarts that count against all
        self._reported = -inf  # when lives that wait for a place were
        self.restarts = 0
        self.failed = False
        self.due_at = -inf

    @property
    def workers(self) -> Mapping[int, Standing]:
        """All there ever were, by index."""
        return self._workers

    @property
    def next_index(self) -> int:
        """Of the worker that is added next."""
        return self._first + len(self._workers)

    @property
    def required(self) -> int:
        """With fewer the run ends."""
        return self._survival.min_workers or len(self._workers)

    @property
    def left(self) -> int:
        """How many live or are coming back."""
        return sum(standing.phase != "gone" for standing in self._workers.values())

    def comes_back(self, worker: int) -> bool:
        """Whether this worker cannot be called now, but will be."""
        phase = self._workers[worker].phase
        return phase == "starting" or (phase == "waiting" and not self.failed)

    def lives(self, name: Name) -> bool:
        """Whether this life has been started and is not over."""
        standing = self._workers.get(name.worker)
        return standing is not None and standing.life == name.life and standing.phase in ("starting", "up")

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """What is to be done now. News of lives that are over already change nothing.

        Args:
            event: what has happened.
            now: seconds of any clock that does not go backwards.
        """
        instructions = self._handle(event, now)
        workers = self._workers.items()
        unplaced = {
            Name(worker, standing.life): standing.since
            for worker, standing in workers
            if standing.phase == "starting" and not standing.placed
        }
        report_at = max(min(unplaced.values(), default=inf), self._reported) + REPORT_S
        if report_at <= now and isinstance(event, Ticked):
            self._reported, report_at = now, now + REPORT_S
            instructions.append(NoRoom(tuple(unplaced)))
        self.due_at = min([report_at, *(self._deadline(standing) for _, standing in workers)])
        return instructions

    def _handle(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case Placed(name):
                self._started(name, "starting", now, placed=True)
            case Ready(name):
                self._started(name, "up", now, placed=False)
            case Died(name, cause):
                return self._died(name, cause, now) if self.lives(name) else []
            case PlaceGone(cause):
                left = [worker for worker, standing in self._workers.items() if standing.phase != "gone"]
                self._deaths += [(worker, cause) for worker in left[:1]]  # one cause for all
                return self._given_up(left, now)
            case Added():
                self._workers[self.next_index] = Standing(phase="up", since=now)
            case Retired(worker):
                self._workers[worker] = replace(self._workers[worker], phase="gone", since=now)
            case Forgiven():
                self._forgive()
            case Ticked():
                return self._due(self._workers, now)
        return []

    def _started(self, name: Name, phase: Phase, now: float, *, placed: bool) -> None:
        standing = self._workers[name.worker]
        if (standing.life, standing.phase) == (name.life, "starting"):
            self._workers[name.worker] = replace(standing, phase=phase, placed=placed or standing.placed, since=now)

    def _died(self, name: Name, cause: BaseException, now: float) -> list[Instruction]:
        worker, life = name
        standing = self._workers[worker] = self._forgiven(worker, self._workers[worker], now)
        self._deaths.append((worker, cause))
        if not self._may_return(standing):
            return self._given_up([worker], now)
        self.restarts += 1
        self._spent += 1
        number = standing.restarts + 1
        until = now + self._survival.restarts.delay(number)
        self._workers[worker] = Standing(life + 1, "waiting", until, number)
        return self._due([worker], now)

    def _forgiven(self, worker: int, standing: Standing, now: float) -> Standing:
        """A long life clears the count."""
        enough = self._survival.restarts.forgive_after_s
        if enough is None or standing.phase != "up" or now - standing.since < enough:
            return standing
        self._deaths = [death for death in self._deaths if death[0] != worker]
        return replace(standing, restarts=0)

    def _forgive(self) -> None:
        self._spent = 0
        gone = {worker for worker, standing in self._workers.items() if standing.phase == "gone"}
        self._deaths = [death for death in self._deaths if death[0] in gone]
        for worker in self._workers.keys() - gone:
            self._workers[worker] = replace(self._workers[worker], restarts=0)

    def _may_return(self, standing: Standing) -> bool:
        most = self._survival.restarts
        within_total = most.max_total is None or self._spent < most.max_total
        return not self.failed and within_total and standing.restarts < most.max_per_worker

    def _given_up(self, workers: Sequence[int], now: float) -> list[Instruction]:
        for worker in workers:
            self._workers[worker] = replace(self._workers[worker], phase="gone", since=now)
        instructions: list[Instruction] = [GiveUp(Name(worker, self._workers[worker].life)) for worker in workers]
        if workers and not self.failed and self.left < self.required:
            self.failed = True
            causes = (cause for worker, cause in self._deaths if self._workers[worker].phase == "gone")
            instructions.append(Fail(tuple(causes)))
        return instructions

    def _due(self, workers: Iterable[int], now: float) -> list[Instruction]:
        return [self._seen_to(worker, now) for worker in workers if self._deadline(self._workers[worker]) <= now]

    def _seen_to(self, worker: int, now: float) -> Instruction:
        standing = self._workers[worker]
        name = Name(worker, standing.life)
        if standing.phase == "starting":
            return Overdue(name)
        self._workers[worker] = replace(standing, phase="starting", since=now, placed=False)
        return Start(name)

    def _deadline(self, standing: Standing) -> float:
        """When something is to be done about a worker if nothing happens to it before."""
        if standing.phase == "waiting" and not self.failed:
            return standing.since
        survival, patience = self._survival, None
        if standing.phase != "starting" or standing.life == 0:
            return inf
        if standing.placed and survival.start_timeout_s is not None:
            patience = survival.start_timeout_s
        elif standing.placed or not survival.waits_for_room:
            patience = survival.placement_timeout_s
        return inf if patience is None else standing.since + patience
