"""What a step's outputs consist of: arrays `[B, …]` in a fixed order, and which columns of batches they are.

for the env │ raw, if it differs │ extras │ before │ state in │ state out
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swath.rollout_workers.batches.names import STATE_IN, STATE_OUT
from swath.rollout_workers.nests import leaves_of, nest_of


@dataclass(frozen=True)
class Part:
    """One column of a batch among the outputs.

    Attributes:
        name: of the column.
        template: a nest of its structure.
        start: the first of its leaves among the outputs.
        stop: the one behind the last.
    """

    name: str
    template: Any
    start: int
    stop: int


class Layout:
    """Where columns are among the outputs.

    Args:
        skip: how many outputs come first that are no column.
    """

    def __init__(self, skip: int = 0) -> None:
        self.parts: list[Part] = []
        self.skip = self.size = skip

    def add(self, name: str, template: Any) -> None:
        """The next outputs are the leaves of this column."""
        n = len(leaves_of(template))
        self.parts.append(Part(name, template, self.size, self.size + n))
        self.size += n

    def add_states(self, template: Sequence[Any]) -> None:
        """The next outputs are states before the step, then those after it."""
        for prefix in (STATE_IN, STATE_OUT):
            for i, nest in enumerate(template):
                self.add(f"{prefix}{i}", nest)

    def columns(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Outputs by column, nested as they are to be."""
        return {part.name: nest_of(part.template, leaves[part.start : part.stop]) for part in self.parts}
