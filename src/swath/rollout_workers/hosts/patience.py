"""How often a sub-env may fail before its worker gives up, and how long it is left alone in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LONGEST_DELAY = 5.0
"""Seconds."""

_MOST_DOUBLINGS = 64
"""More would not fit into a float some day."""


@dataclass(frozen=True)
class Patience:
    """What is borne of sub-envs that raise.

    Attributes:
        restarts: how many failures in a row, without a good step between them, are answered with a new sub-env; None:
            none is, every failure is raised.
        delay: seconds before a sub-env is made anew, doubled with each failure in a row, up to 5 if it is less.
        wait: lets so many seconds pass.
    """

    restarts: int | None = None
    delay: float = 0.1
    wait: Callable[[float], None] = time.sleep

    @classmethod
    def of(cls, config: Any) -> Patience:
        """As an `AlgorithmConfig` says."""
        if not config.restart_failed_sub_environments:
            return cls()
        return cls(config.max_num_sub_environment_restarts, config.delay_between_sub_environment_restarts_s)

    def bears(self, in_a_row: int) -> bool:
        """Whether so many failures in a row are borne."""
        return self.restarts is not None and in_a_row <= self.restarts

    def pause(self, in_a_row: int) -> None:
        """Leave a sub-env alone that has failed so often in a row."""
        doublings = min(in_a_row - 1, _MOST_DOUBLINGS)
        self.wait(min(max(LONGEST_DELAY, self.delay), self.delay * 2**doublings))

    def note(self, error: Exception, in_a_row: int) -> None:
        """Tell in the error why it is raised, if others like it were borne."""
        if self.restarts is not None:
            error.add_note(
                f"the sub-env failed {in_a_row} times in a row without a good step; "
                f"max_num_sub_environment_restarts={self.restarts}"
            )
