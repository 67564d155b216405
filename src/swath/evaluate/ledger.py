"""The books of an evaluation: what each slot's episode has earned so far, and the episodes that are complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from swath.evaluate.result import NO_SEED, Episodes
from swath.rollout.spaces import Array


@dataclass(frozen=True)
class Booked:
    """A complete episode."""

    total: float
    length: int
    terminated: bool
    truncated: bool
    seed: int = NO_SEED


class Ledger:
    """Running sums of S slots and the rows of complete episodes, by number.

    Attributes:
        returns: float64 `[S]`, sum of the rewards of the episode that each slot plays.
        lengths: int64 `[S]`, its env steps.
    """

    def __init__(self, num_slots: int) -> None:
        self.returns = np.zeros(num_slots)
        self.lengths = np.zeros(num_slots, dtype=np.int64)
        self._rows: dict[int, Booked] = {}

    def begin(self, slots: Iterable[int]) -> None:
        """Episodes begin in these slots."""
        rows = list(slots)
        self.returns[rows] = 0.0
        self.lengths[rows] = 0

    def add(self, reward: Array, void: Sequence[int] = ()) -> None:
        """One step of every slot was made, with these rewards `[S]`; rows named void are no steps."""
        earned, made = reward, np.ones(len(reward), dtype=np.int64)
        if void:
            real = ~np.isin(np.arange(len(reward)), void)
            earned, made = np.where(real, reward, 0.0), real.astype(np.int64)
        with np.errstate(invalid="ignore"):
            self.returns += earned
        self.lengths += made

    def book(self, episode: int, row: Booked) -> None:
        """An episode is complete."""
        self._rows[episode] = row

    def __len__(self) -> int:
        """How many episodes are complete."""
        return len(self._rows)

    def count_of(self, slot: int, num_slots: int) -> int:
        """How many complete episodes this slot of so many has played."""
        return sum(episode % num_slots == slot for episode in self._rows)

    def rows(self) -> dict[int, Booked]:
        """The complete episodes, by number."""
        return dict(self._rows)

    def episodes(self) -> Episodes:
        """The complete episodes, in their order."""
        return gathered(self._rows)


def gathered(rows: Mapping[int, Booked]) -> Episodes:
    """Episodes by number as columns, in their order."""
    ordered = [rows[episode] for episode in sorted(rows)]
    return Episodes.of(
        {
            "returns": [row.total for row in ordered],
            "lengths": [row.length for row in ordered],
            "terminated": [row.terminated for row in ordered],
            "truncated": [row.truncated for row in ordered],
            "seeds": [row.seed for row in ordered],
        }
    )


class EpisodeLimit:
    """A step limit that reads from the ledger how long episodes are, and remembers whom it cut last.

    Args:
        max_steps: most env steps of an episode; `None` for no limit.
        lengths: int64 `[S]`, steps of each slot's episode before the present one; the ledger writes it.

    Attributes:
        cut: slots whose episode reached the limit with the last step.
    """

    def __init__(self, max_steps: int | None, lengths: Array) -> None:
        self._max, self._lengths = max_steps, lengths
        self._stopped: set[int] = set()
        self.cut: Sequence[int] = ()

    def restart(self, envs: Iterable[int]) -> None:
        """These slots are stepped (again)."""
        self._stopped.difference_update(envs)

    def stop(self, envs: Iterable[int]) -> None:
        """These slots make no step."""
        self._stopped.update(envs)

    def tick(self) -> Sequence[int]:
        """One step was made: the slots whose episode has now reached the limit."""
        if self._max is not None:
            full = np.flatnonzero(self._lengths + 1 >= self._max)
            self.cut = [int(slot) for slot in full if int(slot) not in self._stopped]
        return self.cut
