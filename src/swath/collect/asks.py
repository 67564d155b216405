"""What crosses between a collection and its workers.

Ask ──▶ worker: one fragment ──▶ Head (small) + body (arrays), or Broken
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swath.collect.worker import Tally


@dataclass(frozen=True)
class Ask:
    """A request for one fragment.

    Attributes:
        frames: how many to make, rounded up to whole steps; `None` for as many as before.
        randomly: with random actions.
        number: grows with every request to any worker.
        bell: an int64 array `[W]` shared with the workers; a worker stops at its next step once its entry has reached
            the number. `None` if nobody stops it.
        entry: of the worker in that array.
        write: write the fragment to the worker's own client of the replay buffer, and send none.
    """

    frames: int | None = None
    randomly: bool = False
    number: int = 0
    bell: Any = None
    entry: int = 0
    write: bool = False


@dataclass(frozen=True)
class Head:
    """What is known of a fragment before its arrays are fetched.

    Attributes:
        worker: who made it.
        life: in which life.
        version: the policy version that acted.
        frames: how many rows are transitions.
        steps: how many of its T steps were made.
        tally: what went wrong in this life so far.
        episodes: return and length of each episode that ended.
        next_id: above every trajectory id given.
        next_ids: the same for each worker inside it that has given some, where it is a collector of several.
    """

    worker: int
    life: int
    version: int
    frames: int
    steps: int
    tally: Tally
    episodes: tuple[tuple[float, int], ...]
    next_id: int
    next_ids: tuple[int, ...] = ()

    @property
    def floors(self) -> tuple[int, ...]:
        """Above every trajectory id given, one for each worker that gives ids."""
        return self.next_ids or (self.next_id,)


@dataclass(frozen=True)
class Broken:
    """There is no fragment: the env, the policy or a hook raised. The answer of a worker that cannot be used, too.

    Attributes:
        error: the exception, as `outcome.frozen` wrote it.
        tally: what went wrong in this life so far.
        by_env: whether an env raised it.
        unfit: whether the worker is not what it should be, and has to be replaced: the weights do not fit it, say.
    """

    error: bytes
    tally: Tally = field(default_factory=Tally)
    by_env: bool = False
    unfit: bool = False
