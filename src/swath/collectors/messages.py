"""What crosses between a collection and its workers.

FragmentRequest ──▶ worker: one fragment ──▶ Head (small) + body (arrays), or Broken
                                         └─▶ Head with Written, where the worker writes to a replay buffer itself
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swath.rollout.episodes.statistics import EpisodeArray, unpacked


@dataclass
class Tally:
    """What went wrong in this worker.

    Attributes:
        env_errors: exceptions of envs.
        restarts: how often the env source was built anew.
        fragments_lost: fragments broken by an exception.
        frames_discarded: good frames in them.
    """

    env_errors: int = 0
    restarts: int = 0
    fragments_lost: int = 0
    frames_discarded: int = 0


@dataclass(frozen=True)
class FragmentRequest:
    """A request for one fragment.

    Attributes:
        frames: how many to make, rounded up to whole steps; `None` for as many as before.
        randomly: with random actions.
        number: grows with every request to any worker.
        bell: an int64 array `[W]` shared with the workers; a worker stops at its next step once its entry has reached
            the number. `None` if nobody stops it.
        entry: of the worker in that array.
    """

    frames: int | None = None
    randomly: bool = False
    number: int = 0
    bell: Any = None
    entry: int = 0


@dataclass(frozen=True)
class Written:
    """What a worker has written itself to a replay buffer.

    Attributes:
        frames: in how many rows; 0 where whole episodes are written, and too few were complete.
        times: how often it called `extend`.
        waiting: frames that wait, for the end of their episode or for the next write.
        packed: the episodes that ended in the rows that were written, as bytes.
        error: what was raised meanwhile, as `outcome.frozen` wrote it; what was to be written is lost.
    """

    frames: int
    times: int = 1
    waiting: int = 0
    packed: bytes = b""
    error: bytes = b""

    @property
    def episodes(self) -> EpisodeArray:
        """The episodes that ended in the rows that were written."""
        return unpacked(self.packed)


@dataclass
class Head:
    """What is known of a fragment before its arrays are fetched.

    Attributes:
        worker: who made it.
        life: in which life.
        version: the policy version that acted.
        frames: how many rows are transitions.
        steps: how many of its T steps were made.
        tally: what went wrong in this life so far.
        packed: the episodes that ended in it, as bytes.
        next_id: above every trajectory id given.
        sent: how many frames this life has sent, these included.
        since: `next_id` of the fragment before.
        gap: `next_id` of what was given to others just before it: episodes with lower ids lack frames; 0 for none.
        written: what the worker has written itself; `None` where its fragments are sent.
    """

    worker: int
    life: int
    version: int
    frames: int
    steps: int
    tally: Tally
    packed: bytes
    next_id: int
    sent: int = 0
    since: int = 0
    gap: int = 0
    written: Written | None = None

    @property
    def episodes(self) -> EpisodeArray:
        """The episodes that ended in it."""
        return unpacked(self.packed)


@dataclass(frozen=True)
class Broken:
    """There is no fragment: the env, the policy or a hook raised. The answer of a worker that cannot be used, too.

    Attributes:
        error: the exception; where it crosses a border as `outcome.frozen` wrote it.
        tally: what went wrong in this life so far.
        by_env: whether an env raised it.
        unfit: whether the worker is not what it should be, and has to be replaced: the weights do not fit it, say.
    """

    error: Exception | bytes
    tally: Tally = field(default_factory=Tally)
    by_env: bool = False
    unfit: bool = False
