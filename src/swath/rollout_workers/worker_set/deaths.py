"""What a set makes of the deaths of its workers: told, counted, raised or borne."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Literal, NamedTuple, TypeAlias

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.workers.fleet_state import Died, GiveUp, Ready
from swath.workers.tickets import Name

Kind: TypeAlias = Literal["died", "hung", "replaced", "given up", "late", "discarded"]

MOST = 10_000


class Event(NamedTuple):
    """Something that has happened.

    Attributes:
        time: when, in seconds of `time.time`.
        worker: to whom, by id.
        life: in which of its lives.
        kind: what.
        text: in words.
    """

    time: float
    worker: int
    life: int
    kind: Kind
    text: str


class Events:
    """The last of them, oldest first."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MOST)

    def note(self, name: tuple[int, int], kind: Kind, text: str) -> None:
        """It happened just now to this life of a worker."""
        self._events.append(Event(time.time(), *name, kind, text))

    def drain(self) -> list[Event]:
        """All since the last call."""
        drained = []
        while self._events:
            drained.append(self._events.popleft())
        return drained


class Deaths:
    """Listens to a fleet.

    Args:
        config: says which losses are not raised, how many in a row are too many, and how long a request may take.
        events: where all is told.
        late: lives that were ended because they took too long.
    """

    def __init__(self, config: AlgorithmConfig, events: Events, late: Collection[Name]) -> None:
        self.tolerant = config.restart_failed_env_runners or config.ignore_env_runner_failures
        self._most_in_a_row = config.num_consecutive_env_runner_failures_tolerance
        self._patience = config.env_runner_hang_timeout_s
        self._events = events
        self._late = late
        self._in_a_row: list[BaseException] = []
        self._to_raise: dict[Name, BaseException] = {}

    def __call__(self, news: Ready | Died | GiveUp) -> None:
        """Hear what became of a worker."""
        match news:
            case Died(name, cause):
                self._events.note(name, "hung" if name in self._late else "died", str(cause))
                self._in_a_row.append(cause)
                if not self.tolerant:
                    self._to_raise[name] = cause
            case Ready(name) if name.life:
                self._events.note(name, "replaced", f"life {name.life} of worker {name.worker} is up")
            case GiveUp(name):
                self._events.note(name, "given up", f"worker {name.worker} is not replaced")

    def answered(self) -> None:
        """A worker has answered: the row is broken."""
        self._in_a_row.clear()

    def told(self, name: Name) -> None:
        """The loss of this life is being raised."""
        self._to_raise.pop(name, None)

    def require_few(self) -> None:
        """Raise `FleetFailed` if too many died in a row."""
        if len(self._in_a_row) > self._most_in_a_row:
            causes = tuple(self._in_a_row)
            raise FleetFailed(
                f"{len(causes)} workers died in a row, more than num_consecutive_env_runner_failures_tolerance="
                f"{self._most_in_a_row}; the last: {causes[-1]}",
                causes=causes,
            )

    def require_borne(self) -> None:
        """Raise the loss of a worker that is not borne; each once."""
        for name in list(self._to_raise):
            raise self.seen(name, self._to_raise.pop(name))

    def seen(self, name: Name, error: BaseException) -> BaseException:
        """What a caller is to see in place of an answer."""
        if not isinstance(error, WorkerLost) or name not in self._late:
            return error if isinstance(error, Exception) else WorkerLost(str(error), worker=name.worker, life=name.life)
        patience = self._patience
        return WorkerLate(
            f"worker {name.worker} (life {name.life}) was ended: a request took longer than "
            f"env_runner_hang_timeout_s={patience:g}",
            workers=(name.worker,),
            deadline=patience,
        )
