"""What has become of the workers of a set: events, and which losses are raised."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Literal, NamedTuple, TypeAlias

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.workers.fleet_state import Died, GiveUp, Ready
from swath.workers.tickets import Name

MOST_EVENTS = 10_000

Kind: TypeAlias = Literal["died", "hung", "replaced", "given up", "late", "discarded"]


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


class WorkerFailures:
    """What has become of workers, and which losses are raised; the listener of a fleet.

    Args:
        config: says which losses are tolerated, how many in a row are too many, how long a request may take.

    Attributes:
        late: lives that were ended because they took too long.
        tolerated: losses are not raised.
        events: since the last call of `drain`.
        returned: workers whose next lives are up, since they were last reported.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self.tolerated = config.restart_failed_env_runners or config.ignore_env_runner_failures
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.returned: list[int] = []
        self._most_in_a_row = config.num_consecutive_env_runner_failures_tolerance
        self.late: Collection[Name] = ()
        self._hang_timeout_s = config.env_runner_hang_timeout_s
        self._in_a_row: list[BaseException] = []
        self._to_raise: dict[Name, BaseException] = {}

    def __call__(self, news: Ready | Died | GiveUp) -> None:
        """Note what became of a worker."""
        match news:
            case Died(name, cause):
                self.note(name, "hung" if name in self.late else "died", str(cause))
                self._in_a_row.append(cause)
                if not self.tolerated:
                    self._to_raise[name] = cause
            case Ready(name) if name.life:
                self.note(name, "replaced", f"life {name.life} of worker {name.worker} is up")
                self.returned.append(name.worker)
            case GiveUp(name):
                self.note(name, "given up", f"worker {name.worker} is not replaced")

    def note(self, name: Name, kind: Kind, text: str) -> None:
        """It happened just now to this life of a worker."""
        self.events.append(Event(time.time(), *name, kind, text))

    def answered(self) -> None:
        """A worker has answered: those that died before it are no row any more."""
        self._in_a_row.clear()

    def require_few(self) -> None:
        """Raise `FleetFailed` if too many died in a row."""
        if len(self._in_a_row) > self._most_in_a_row:
            causes = tuple(self._in_a_row)
            raise FleetFailed(
                f"{len(causes)} workers died in a row, more than num_consecutive_env_runner_failures_tolerance="
                f"{self._most_in_a_row}; the last: {causes[-1]}",
                causes=causes,
            )

    def require_none(self) -> None:
        """Raise the loss of a worker that is not tolerated; each once."""
        for name in list(self._to_raise):
            raise self.seen(name, self._to_raise[name])

    def seen(self, name: Name, error: BaseException | None) -> BaseException:
        """What a caller is to see of a loss, which is not raised again."""
        self._to_raise.pop(name, None)
        if name not in self.late:
            return error if isinstance(error, Exception) else WorkerLost(str(error), worker=name.worker, life=name.life)
        return WorkerLate(
            f"worker {name.worker} (life {name.life}) was ended: a request took longer than "
            f"env_runner_hang_timeout_s={self._hang_timeout_s:g}",
            workers=(name.worker,),
            deadline=self._hang_timeout_s,
        )

    def is_tolerated(self, error: BaseException) -> bool:
        """Whether it is the loss of a worker, and not to be raised."""
        return self.tolerated and isinstance(error, WorkerLost)
