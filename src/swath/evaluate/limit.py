"""`max_steps` of an evaluation: counted per episode, also where an env ends and begins several times within one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from swath.evaluate.statistics import Ints


class EpisodeLimit:
    """A step limit that reads from the ledger how long episodes are, and remembers whom it cut last.

    Args:
        max_steps: most env steps of an episode; `None` for no limit.
        lengths: int64 `[S]`, steps of each slot's episode before the present one; the ledger writes it.

    Attributes:
        cut: slots whose episode reached the limit with the last step.
    """

    def __init__(self, max_steps: int | None, lengths: Ints) -> None:
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
