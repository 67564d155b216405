"""What can be seen of a run at one moment: read from the `stats("both")` of what collects, rates from those before."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from math import inf, nan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_WORKER = re.compile(r"worker_(\d+)/frames")
WINDOW_S = 10.0
"""Rates are over so many seconds."""

TROUBLE = {
    "restarts": ("restart", "restarts"),
    "workers_lost": ("worker lost", "workers lost"),
    "late": ("too late", "too late"),
    "fragments_lost": ("fragment lost", "fragments lost"),
    "env_errors": ("env error", "env errors"),
    "batches_dropped": ("fragment too old", "fragments too old"),
}
"""What went wrong, under the names of `stats()`, and how it is said of one and of many."""


@dataclass(frozen=True)
class WorkerSeen:
    """One worker.

    Attributes:
        worker: its index.
        state: as `stats()` says it: `"up"`, `"restarting"`, …
        life: which of its lives; 0 is the first.
        frames: collected.
        rate: frames a second lately.
        version: of the weights that its last fragment was made with.
        staleness: how many versions behind the newest this was when it arrived.
    """

    worker: int
    state: str
    life: int
    frames: int
    rate: float
    version: int
    staleness: int


@dataclass(frozen=True)
class Seen:
    """A run.

    Attributes:
        frames: delivered.
        rate: frames a second lately.
        seconds: since the first draw.
        waiting: part of these in which somebody waited for a batch; NaN before the first draw.
        version: of the weights that were published last.
        total: frames of the run; `None` for no end.
        seconds_left: at the rate so far; infinite if it is not known.
        episodes: that have ended.
        episode_return: mean over the last 100; NaN before the first.
        episode_length: likewise, in env steps.
        trouble: what went wrong, in words.
        alive: how many workers are up; `None` in the process of the collector itself.
        workers: by index; empty likewise.
        staleness: most versions that a worker's last fragment was behind when it arrived.
        losses: the learner's numbers, in the order to show them.
        error: what stopped the background mode.
    """

    frames: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    waiting: float = nan
    version: int = 0
    total: int | None = None
    seconds_left: float = inf
    episodes: int = 0
    episode_return: float = nan
    episode_length: float = nan
    trouble: tuple[str, ...] = ()
    alive: int | None = None
    workers: tuple[WorkerSeen, ...] = ()
    staleness: int = 0
    losses: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def share(self) -> float | None:
        """How much of the run is done, 0 to 1; `None` for no end."""
        return min(self.frames / self.total, 1.0) if self.total else None

    @property
    def progress(self) -> str:
        """`65,536 of 100,000`, or without the end if there is none."""
        return f"{self.frames:,}" + (f" of {self.total:,}" if self.total else "")

    @property
    def workers_up(self) -> str:
        """`2 of 3 workers`; empty in the process of the collector itself."""
        return "" if self.alive is None else f"{self.alive:,} of {len(self.workers):,} workers"


class Rates:
    """How quickly counts grow, over the last seconds."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, Mapping[str, float]]] = deque()

    def read(self, now: float, counts: Mapping[str, float]) -> None:
        """These are the counts at this reading of a clock, in seconds."""
        self._readings.append((now, counts))
        while len(self._readings) > 2 and self._readings[1][0] <= now - WINDOW_S:
            self._readings.popleft()

    def of(self, name: str) -> float:
        """What it grew by, a second; 0 before there are two readings of it."""
        (began, first), (now, last) = self._readings[0], self._readings[-1]
        grown = last[name] - first.get(name, 0)
        return max(grown, 0) / (now - began) if now > began else 0.0


class Sight:
    """Looks at one collector again and again."""

    def __init__(self) -> None:
        self._rates = Rates()

    def look(self, facts: Mapping[str, Any], now: float) -> Seen:
        """What is seen of it.

        Args:
            facts: its `stats("both")`.
            now: a clock's reading, in seconds.
        """
        workers = [int(found[1]) for name in facts if (found := OF_WORKER.fullmatch(name))]
        names = ["frames", *(f"worker_{worker}/frames" for worker in workers)]
        self._rates.read(now, {name: facts[name] for name in names})
        is_fleet, total, fps = "workers" in facts, facts.get("total_frames"), facts["fps"]
        return Seen(
            frames=facts["frames"],
            rate=self._rates.of("frames"),
            seconds=facts["seconds"],
            waiting=min(facts["seconds_waiting"] / facts["seconds"], 1.0) if facts["seconds"] else nan,
            version=facts["policy_version"],
            total=total,
            seconds_left=max(total - facts["frames"], 0) / fps if total is not None and fps else inf,
            episodes=facts["episodes"],
            episode_return=facts.get("episode_return", nan),
            episode_length=facts.get("episode_length", nan),
            trouble=tuple(_counted(facts[name], words) for name, words in TROUBLE.items() if facts.get(name)),
            alive=facts["workers_alive"] if is_fleet else None,
            workers=tuple(self._worker(facts, worker) for worker in workers) if is_fleet else (),
            staleness=facts["staleness"],
            error=facts.get("error", ""),
        )

    def _worker(self, facts: Mapping[str, Any], worker: int) -> WorkerSeen:
        name = f"worker_{worker}"
        return WorkerSeen(
            worker,
            state=facts[f"{name}/state"],
            life=facts[f"{name}/life"],
            frames=facts[f"{name}/frames"],
            rate=self._rates.of(f"{name}/frames"),
            version=facts[f"{name}/policy_version"],
            staleness=facts[f"{name}/staleness"],
        )


def numbers_of(facts: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the facts of `stats()`, for a sink; true and false as 1 and 0, words left out."""
    return {name: value + 0 for name, value in facts.items() if isinstance(value, int | float)}


def _counted(number: int, words: tuple[str, str]) -> str:
    return f"{number:,} {words[number != 1]}"
