"""What the workers of a set have told of themselves, and what was handed out, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from swath.collect.counters import Counters, EpisodeLog
from swath.rollout_workers.worker_set.telling import Told


class Books:
    """Kept by the thread that uses the set; any thread may read them.

    Attributes:
        counters: of what was handed out, and of time.
        episodes: that have ended.
        frames: env steps by worker.
        versions: of the weights that each worker's last env steps were made with.
        lags: how many versions behind the newest these were when they arrived.
        env_errors: how often an env has raised.
        fragments_lost: that were asked for and did not come.
    """

    def __init__(self) -> None:
        self.counters, self.episodes = Counters(), EpisodeLog()
        self.frames: Counter[int] = Counter()
        self.versions: dict[int, int] = {}
        self.lags: dict[int, int] = {}
        self.env_errors = self.fragments_lost = 0

    def begin(self) -> None:
        """Time counts from now on."""
        self.counters.start_clock()
        self.counters.seconds_waiting = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Somebody waits for workers."""
        began = monotonic()
        try:
            yield
        finally:
            self.counters.seconds_waiting += monotonic() - began

    def hear(self, worker: int, told: Told, newest: int) -> None:
        """Take note of what a worker tells, when this version is the newest that is meant for it."""
        self.env_errors += told.env_errors
        self.episodes.book(told.last)
        self.episodes.finished += told.episodes - len(told.last)
        if told.env_steps:
            self.frames[worker] += told.env_steps
            self.versions[worker] = told.version
            self.lags[worker] = max(0, newest - told.version)
