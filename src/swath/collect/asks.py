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
        randomly: with random actions.
        number: grows with every request to any worker.
        bell: an int64 array `[W]` shared with the workers; a worker stops at its next step once its entry has reached
            the number. `None` if nobody stops it.
        write: write the fragment to the worker's own client of the replay buffer, and send none.
    """

    randomly: bool = False
    number: int = 0
    bell: Any = None
    write: bool = False


@dataclass(frozen=True)
class Head:
    """What is known of a fragment before its arrays are fetched.

    Attributes:
        worker: who made it.
        life: in which life.
        version: the policy version that acted.
        frames: how many rows are transitions.
        tally: what went wrong in this life so far.
        episodes: return and length of each episode that ended.
        next_id: above every trajectory id given.
    """

    worker: int
    life: int
    version: int
    frames: int
    tally: Tally
    episodes: tuple[tuple[float, int], ...]
    next_id: int


@dataclass(frozen=True)
class Broken:
    """There is no fragment: the env, the policy or a hook raised.

    Attributes:
        error: the exception, as `outcome.frozen` wrote it.
        tally: what went wrong in this life so far.
        by_env: whether an env raised it.
    """

    error: bytes
    tally: Tally = field(default_factory=Tally)
    by_env: bool = False
