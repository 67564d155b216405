"""The parts of a result: the episodes that were played, how it came about, what was filmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from swath.evaluate.interval import Floats
    from swath.evaluate.statistics import Ints
    from swath.evaluate.stopping import Stopped
    from swath.rollout.hosts.specs import Seeding

Bools: TypeAlias = NDArray[np.bool_]

NO_SEED = -1
"""The seed of an episode that had none of its own."""

EPISODE_DTYPES: dict[str, type[np.generic]] = {
    "returns": np.float64,
    "lengths": np.int64,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "seeds": np.int64,
}


@dataclass(frozen=True, eq=False)
class Episodes:
    """The N episodes of an evaluation, in episode order.

    Attributes:
        returns: float64 [N].
        lengths: int64 [N], env steps.
        terminated: bool [N].
        truncated: bool [N], cuts by `max_steps` included.
        seeds: int64 [N], -1 where an episode had none of its own.
    """

    returns: Floats
    lengths: Ints
    terminated: Bools
    truncated: Bools
    seeds: Ints

    def __post_init__(self) -> None:
        sizes = {name: len(column) for name, column in vars(self).items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"the columns of the episodes differ in length: {sizes}")

    @classmethod
    def of(cls, columns: Mapping[str, ArrayLike]) -> Self:
        """Episodes from array-likes by name, copied into the dtypes above."""
        return cls(**{name: np.array(columns[name], dtype=kind) for name, kind in EPISODE_DTYPES.items()})


@dataclass(frozen=True)
class Provenance:
    """How a result came about.

    Attributes:
        step: the training step it was asked for, or a count of evaluations.
        seeding: how far seeds reached: each episode, the layout as a whole, or nothing.
        stopped: what ended it: the fixed number of episodes, a narrow interval, or the bound on episodes.
        retries: how often it was repeated after a worker was lost.
    """

    step: int = 0
    seeding: Seeding = "episode"
    stopped: Stopped = "fixed"
    retries: int = 0


@dataclass(frozen=True)
class Films:
    """What was filmed.

    Attributes:
        video_paths: files that were written, one per filmed episode.
        video_lengths: frames of each filmed episode.
        video_truncated: whether filming stopped early because the frames took too much memory.
    """

    video_paths: tuple[str, ...] = ()
    video_lengths: tuple[int, ...] = ()
    video_truncated: bool = False
