"""The rounds of an evaluation: which episodes come next, and when there are enough. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from swath.evaluate.interval import mean_interval
from swath.evaluate.ledger import Booked, gathered
from swath.evaluate.record import Episodes
from swath.evaluate.request import EvalRequest
from swath.evaluate.stopping import Stopped


class Rounds:
    """Rounds of episodes until the request has enough.

    Args:
        request: says how many a round has, and when to stop.

    Attributes:
        due: the episodes of the round to be played.
        stopped: why no more are played; `None` while some are.
    """

    def __init__(self, request: EvalRequest) -> None:
        self._rule, self._root = request.stop, request.seed
        self._rows: dict[int, Booked] = {}
        self.due = range(self._rule.num_trajectories)
        self.stopped: Stopped | None = None

    def played(self, rows: Mapping[int, Booked]) -> None:
        """The round is over; its episodes by number.

        Raises:
            ValueError: some are missing.
        """
        missing = set(self.due) - set(rows)
        if missing:
            raise ValueError(f"episodes {sorted(missing)} of the round {self.due} were not played")
        self._rows.update(rows)
        n = len(self._rows)
        returns = np.array([self._rows[episode].total for episode in range(n)])
        self.stopped = self._rule.verdict(n, mean_interval(returns, self._root))
        if self.stopped is None:
            self.due = range(n, n + self._rule.num_trajectories)

    def episodes(self) -> Episodes:
        """All that were played, in their order."""
        return gathered(self._rows)
