"""The values of the observations that the agents of a role acted on, computed all together where that can be."""

from __future__ import annotations

from typing import Any

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.sampling.multi_agent.stack import Stack
from swath.rollout_workers.sampling.values import values_of


class Values:
    """Values by row.

    Args:
        policy: whose they are.
        observations: by row.
    """

    def __init__(self, policy: Any, observations: Stack) -> None:
        self._policy = policy
        self._observations = observations
        self._values = Stack("values")
        self._due: list[int] = []

    def owe(self, rows: list[int]) -> None:
        """These rows were acted on."""
        self._due += rows

    def settle(self) -> None:
        """Compute what is owed, by the weights of now."""
        if not self._due:
            return
        rows, self._due = self._due, []
        values = values_of(self._policy, len(rows), lambda piece: self._observations.take(rows[piece]))
        self._values.write(rows, values)

    def take(self, rows: Array) -> dict[str, Any]:
        """The column of these rows."""
        return {ColumnNames.VF_PREDS: self._values.take(rows)}

    def keep(self, rows: Array) -> None:
        """Only these rows stay, as the first ones."""
        self._values.keep(rows)
