"""What workers are asked for: fragments of so many frames, until the total is reached, with newer weights when due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from swath.collect.messages import FragmentRequest
from swath.collect.tracker import FragmentTracker, head_of
from swath.group.gather import Plan
from swath.group.group import WorkerGroup
from swath.group.request import Request
from swath.options import Budget
from swath.weights.due import Due
from swath.workers.base import Watched


def nothing() -> None:
    """Nothing is to be done."""


@dataclass
class Renewal:
    """Renews weights at the start of every batch, and before a worker would use old ones for too long.

    Attributes:
        due: when the policy's weights are published.
        publish: publishes them.
        receive: takes the newest from elsewhere, if there is anything newer.
    """

    due: Due
    publish: Callable[[], None]
    receive: Callable[[], None] = nothing

    def at_draw(self) -> None:
        """The user draws; call it before workers are asked."""
        self.receive()
        if self.due.at_draw():
            self.publish()


class Share(NamedTuple):
    """What a worker is asked for: so many frames, with random actions or with the policy's."""

    frames: int
    randomly: bool


@dataclass
class FragmentPlan(Plan):
    """Fragments that are wanted of workers.

    Attributes:
        group: the workers.
        tracker: what is known of them.
        frames: asked of one worker at a time, by worker; the rows of synchronous batches.
        budget: how much to collect.
        renewal: renews weights that were used for too long.
        bell: numbers that workers see while they work, one each; a worker ends its fragment at its next step once its
            number has reached that of the request. `None` where nobody can end them.
        random_batches: how many of the batches that are asked for next are random.
        max_staleness: most versions that a fragment may be behind; `None` for any.
    """

    group: WorkerGroup
    tracker: FragmentTracker
    frames: Mapping[int, int]
    budget: Budget
    renewal: Renewal
    bell: Watched | None = None
    random_batches: int = 0
    max_staleness: int | None = None

    @property
    def wants_more(self) -> bool:
        """Whether more is wanted than is delivered or asked for. Frames count as asked for until they are delivered."""
        if self.group.held:
            return False
        total: int | None = self.budget.total_frames
        if total is None:
            return True
        out: int = sum(request.asked.frames for request in self.group.out if not (request.dropped or request.closed))
        return self.tracker.counters.frames + out < total

    def next_round(self) -> Mapping[int, Share]:
        """A share of every worker."""
        randomly = self._is_next_random()
        return {row: Share(frames, randomly) for row, frames in sorted(self.frames.items())}

    def next_for(self, worker: int) -> Share:
        """A fragment."""
        return Share(self.frames[worker], self._is_next_random())

    def give_back(self, asked: Share) -> None:
        """It was no random batch, then."""
        self.random_batches += asked.randomly

    def before_asking(self, workers: Collection[int]) -> None:
        """Publish newer weights first if one of these has used its own for too long.

        Not while the channel is held steady: other threads may publish, too.
        """
        for worker in workers:
            life = self.group.fleet.handle(worker).name
            if self.renewal.due.before_request(life, self.group.channel.version_for(worker)):
                self.renewal.publish()

    def ask(self, worker: int, asked: Share, *, insisted: bool = False) -> Request:
        """Ask a worker that is up for one fragment, with the newest weights meant for it."""
        ask = FragmentRequest(asked.frames, asked.randomly, self.group.last_number + 1, self.bell, worker)
        request = self.group.request(worker, "collect", ask, asked=asked, insisted=insisted)
        self.renewal.due.asked(request.name, self.group.channel.version_of(worker))
        return request

    def hurry(self, request: Request) -> None:
        """Let a fragment end at its worker's next step."""
        if self.bell is not None:
            values = self.bell.values
            values[request.worker] = max(values[request.worker], request.number)

    def end_all(self) -> None:
        """Let all fragments end so, also those that will be begun."""
        if self.bell is not None:
            self.bell.values[:] = np.iinfo(np.int64).max

    def is_stale(self, request: Request) -> bool:
        """Whether a fragment was made with weights that are too old."""
        version = head_of(request).version
        if self.max_staleness is None or request.asked.randomly or version < 0:
            return False
        return self.group.channel.version_for(request.worker) - version > self.max_staleness

    def stale(self, request: Request, *, delivered: bool) -> None:
        """Count a fragment that is too old."""
        if delivered:
            self.tracker.counters.overdue()
        else:
            self.tracker.counters.drop(head_of(request).frames)
            self.tracker.skip(request.worker, head_of(request).next_id)

    def _is_next_random(self) -> bool:
        """Whether the next batch to be asked for is random; it is then counted."""
        randomly = self.random_batches > 0
        self.random_batches -= randomly
        return randomly
