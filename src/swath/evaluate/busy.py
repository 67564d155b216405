"""What a busy evaluator answers to those who ask for one more evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from swath.evaluate.inbox_events import Refuse, Skip

BusyPolicy = Literal["error", "queue", "skip", "latest"]

MOST_UNREAD = 1024
"""How many unread outcomes are kept."""


@dataclass(frozen=True)
class InboxRules:
    """How an inbox treats its askers.

    Attributes:
        busy_policy: what an async asker is answered while an async request is pending.
        reported: whether every result is shown to `on_result`, so that the oldest unread ones can be let go of.
        most_unread: beyond so many unread outcomes results are let go of or, if they are not reported, no async request
            is admitted; those that were accepted before still get their outcomes.

    Raises:
        ValueError: there is no such policy.
    """

    busy_policy: BusyPolicy = "error"
    reported: bool = False
    most_unread: int = MOST_UNREAD

    def __post_init__(self) -> None:
        choices = get_args(BusyPolicy)
        if self.busy_policy not in choices:
            raise ValueError(f"Unknown busy_policy {self.busy_policy!r}; choose one of {', '.join(map(repr, choices))}")

    def objection(self, *, busy: bool, unread: int) -> Refuse | Skip | None:
        """To one more async request, while so many outcomes are unread."""
        if busy and self.busy_policy == "error":
            return Refuse("pending")
        if busy and self.busy_policy == "skip":
            return Skip()
        full = not self.reported and unread >= self.most_unread
        return Refuse("unread", unread) if full else None
