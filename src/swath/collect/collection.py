"""The service behind `Collector`: one worker in this process, its counters, and the order of calls.

draw ─▶ fragments ─▶ shaped ─▶ counted ─▶ handed out, or written to a replay buffer
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swath.collect.counters import Counters
from swath.collect.gate import Gate
from swath.collect.shaping import Delivery, Drawn, Part, Shaper, noted
from swath.collect.whole import WholeEpisodes
from swath.collect.worker import Seeding, Worker
from swath.options import Budget
from swath.rollout.episodes.statistics import EpisodeArray, EpisodeSums
from swath.rollout.fragment import Fragment


def _nothing() -> None:
    """The user keeps the env; or no weights come from elsewhere."""


class Drawing(ABC):
    """Batches are drawn, until the total is reached: what collections of one and of many workers have in common."""

    shaper: Shaper
    budget: Budget
    buffer: Any
    name: str
    counters: Counters

    def __post_init__(self) -> None:
        self.gate = Gate(self.name)
        self._delivery = Delivery(self.shaper, self.counters, self.gate.require_open, self.buffer)
        wanted, writing = self.shaper.trajectories, self.buffer is not None
        self.whole = None if wanted.per_batch is None else WholeEpisodes(wanted, self.counters, writing)

    @property
    def completed(self) -> bool:
        """Whether the run has reached its end."""
        total = self.budget.total_frames
        return total is not None and self.counters.frames >= total

    @property
    def in_flight(self) -> bool:
        """Whether there is something that was asked for and is not delivered."""
        return False

    def hold(self) -> None:  # noqa: B027  one worker is not asked ahead
        """Ask for no more from now on: draws give what is in flight, and then end."""

    def release(self) -> None:  # noqa: B027  one worker is not asked ahead
        """Go on asking."""

    def draw(self) -> Drawn:
        """The next batch.

        Raises:
            Closed: after shutdown, or shut down meanwhile.
            RuntimeError: another thread is drawing.
            FleetFailed: too few workers are left.
            Exception: what user code raised, as its own type; draw again.
        """
        with self.gate.drawing():
            self.gate.require_open()
            if self.completed:
                self._end_of_run()
                return Drawn(None, ended=True)
            self.counters.start_clock()
            began = time.monotonic()
            try:
                return self._next()
            finally:
                self.counters.seconds_waiting += time.monotonic() - began

    @abstractmethod
    def _end_of_run(self) -> None:
        """Drop what is left over."""

    @abstractmethod
    def _next(self) -> Drawn:
        """The next batch."""


@dataclass
class Collection(Drawing):
    """Draws from one worker. Any thread may call; see `Gate`.

    Attributes:
        worker: makes fragments.
        shaper: makes batches of them.
        budget: how much to collect.
        buffer: where batches are written, if anywhere.
        name: of the face, for messages.
        receive: takes weights from elsewhere; called at the start of every batch.
    """

    worker: Worker
    shaper: Shaper
    budget: Budget
    buffer: Any = None
    name: str = "Collector"
    receive: Callable[[], None] = _nothing
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.worker.stop_when(lambda: self.gate.halted)
        n_envs = self.worker.host.spec.num_envs
        self._sums = EpisodeSums(n_envs)
        self.batch_frames = n_envs * self.worker.place.n_steps
        self.version = 0
        self._publishing = threading.Lock()
        self._random_left = self.budget.random_batches(self.batch_frames)

    def publish(self, apply: Callable[[], None] | None) -> int:
        """Count the version up; weights are copied in now, or right after the running fragment."""
        with self._publishing:
            self.gate.require_open()
            self.version += 1
            version = self.version

            def change() -> None:
                if apply is not None:
                    apply()
                self.worker.version = version

            self.gate.soon(change)
        return version

    def restore_version(self, version: int) -> None:
        """Go on counting from a version that was saved."""
        with self._publishing:
            self.version = self.worker.version = version

    def begin_episodes(self, envs: list[int] | None = None) -> None:
        """Fresh episodes with the next draw, in all envs or in these; what waits for a batch of them is dropped."""
        with self.gate.control():
            self.drop_in_flight(envs)
            self.worker.begin_episodes(envs)

    def set_seed(self, seed: int, *, static: bool) -> None:
        """Seed the worker and begin fresh episodes."""
        with self.gate.control():
            self.drop_in_flight()
            self.worker.set_seed(Seeding(seed, static))

    def be_random(self, randomly: bool) -> None:
        """Let batches be random from now on, or no more."""
        self._random_left = sys.maxsize if randomly else 0

    def close(self, timeout: float, *, close_env: bool) -> None:
        """End the collection; see `Gate.close`."""
        self.gate.close(timeout, self.worker.close if close_env else _nothing)

    def drop_in_flight(self, envs: list[int] | None = None) -> None:
        """Forget episodes that wait for a batch, of all envs or of these; they are counted."""
        if self.whole is not None:
            self.whole.drop(envs=envs)

    def skip_random(self, frames: int) -> None:
        """As many frames have been collected before: that much of the random beginning is over."""
        self._random_left = max(0, self.budget.random_batches(self.batch_frames) - frames // self.batch_frames)

    def _end_of_run(self) -> None:
        with self.gate.collecting():
            self.drop_in_flight()

    def _next(self) -> Drawn:
        self.receive()
        return self._delivery.deliver(self._fragment() if self.whole is None else self._episodes(self.whole))

    def _episodes(self, whole: WholeEpisodes) -> Part:
        while (batch := self._whole(whole)) is None:
            self._fragment(whole)
        return batch

    def _whole(self, whole: WholeEpisodes) -> Part | None:
        """A batch of whole episodes, `None` if there are too few; whatever control calls drop meanwhile."""
        with self.gate.collecting():
            return whole.take()

    def _fragment(self, whole: WholeEpisodes | None = None) -> Part:
        """The batch of the next fragment, which may be for whole episodes; no control call comes in between."""
        before = self.shaper.hooks.before
        if before is not None:
            with noted("pre_collect_hook"):
                before()
        with self.gate.collecting():
            fragment, episodes = self._collect()
            try:
                self.gate.require_open()
                part = Part(self.shaper.plain(fragment), episodes)
                if whole is not None:
                    whole.add({0: part})
            except BaseException:
                self.counters.discard(fragment.frames)
                raise
        return part

    def _collect(self) -> tuple[Fragment, EpisodeArray]:
        lost = self.worker.tally.frames_discarded
        try:
            fragment = self.worker.collect(randomly=self._random_left > 0)
        finally:
            self.counters.discard(self.worker.tally.frames_discarded - lost)
        self._random_left -= self._random_left > 0
        return fragment, fragment.ended(self._sums)
