"""What workers are asked for: fragments of so many frames, until the total is reached, with newer weights when due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from swath.collectors.messages import FragmentRequest
from swath.collectors.tracker import FragmentTracker, head_of
from swath.errors import warn
from swath.group.gather import Plan
from swath.group.group import WorkerGroup
from swath.group.request import Request
from swath.options import count
from swath.weights.channel import Life
from swath.workers.base import Watched


def nothing() -> None:
    """Nothing is to be done."""


@dataclass(frozen=True)
class Automatic:
    """When a collector publishes its policy by itself.

    Attributes:
        each_draw: when the user draws again.
        first_draw: also at the first draw.
        most_fragments: of a worker on one version, before it picks up a newer one; `None` for no limit.
    """

    each_draw: bool = False
    first_draw: bool = False
    most_fragments: int | None = None

    @classmethod
    def asked(cls, *, after_each_batch: bool, interval: object = -1, before_first: bool = False) -> Automatic:
        """From the faces' arguments, where an interval of -1 is off and 0 is after each batch, as the flag.

        Raises:
            ValueError: the interval is no integer, or below -1.
        """
        most = count("max_weight_update_interval", interval, least=-1)
        each = after_each_batch or most == 0
        return cls(each, each and before_first, most if most > 0 and not each else None)

    @property
    def off(self) -> bool:
        """Whether only the user publishes."""
        return not self.each_draw and self.most_fragments is None


@dataclass
class Renewal:
    """Renews weights at the start of every batch, and before a worker would use old ones for too long.

    Attributes:
        rule: when the policy's weights are published.
        publish: publishes them.
        receive: takes the newest from elsewhere, if there is anything newer.
    """

    rule: Automatic
    publish: Callable[[], None]
    receive: Callable[[], None] = nothing
    _drawn: bool = False
    _asked: dict[int, tuple[Life, int, int]] = field(default_factory=dict)

    def at_draw(self) -> None:
        """The user draws; call it once a draw, before workers are asked."""
        self.receive()
        due, self._drawn = self.rule.each_draw if self._drawn else self.rule.first_draw, True
        if due:
            self.publish()

    def before_request(self, life: Life, version: int) -> None:
        """A worker is to be asked for a fragment.

        Args:
            life: of which worker.
            version: the newest that is meant for it, which the request would bring.
        """
        most = self.rule.most_fragments
        if most is not None and self._fragments(life, version) >= most:
            self.publish()

    def asked(self, life: Life, version: int) -> None:
        """A worker was asked for a fragment on this version."""
        self._asked[life[0]] = life, version, self._fragments(life, version) + 1

    def _fragments(self, life: Life, version: int) -> int:
        """How many this life was asked for on this version."""
        *last, fragments = self._asked.get(life[0], (life, version, 0))
        return fragments if last == [life, version] else 0


class Share(NamedTuple):
    """What a worker is asked for: so many frames, with random actions or with the policy's."""

    frames: int
    randomly: bool


@dataclass(frozen=True)
class Budget:
    """How much to collect.

    Attributes:
        frames_per_batch: frames asked for per batch.
        total_frames: lower bound of the frames of a run; `None` for no end.
        init_random_frames: frames to collect with random actions first.
    """

    frames_per_batch: int
    total_frames: int | None = None
    init_random_frames: int = 0

    def warn_if_rounded(self, batch_frames: int) -> None:
        """Say so if batches have more frames than were asked for."""
        if batch_frames != self.frames_per_batch:
            warn(
                f"frames_per_batch={self.frames_per_batch} is not shared evenly by workers and their envs; "
                f"batches have {batch_frames} frames"
            )

    def random_batches(self, batch_frames: int) -> int:
        """How many of the first batches are random."""
        return -(-self.init_random_frames // batch_frames)


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
            self.renewal.before_request(life, self.group.channel.version_for(worker))

    def ask(self, worker: int, asked: Share, *, insisted: bool = False) -> Request:
        """Ask a worker that is up for one fragment, with the newest weights meant for it."""
        ask = FragmentRequest(asked.frames, asked.randomly, self.group.last_number + 1, self.bell, worker)
        request = self.group.request(worker, "collect", ask, asked=asked, insisted=insisted)
        self.renewal.asked(request.name, self.group.channel.version_of(worker))
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
