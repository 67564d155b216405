"""What filters of a set without a local worker have come to: the set keeps them itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from swath.rollout_workers.filters.sharing import copies_of


class SharedFilters:
    """What all workers saw, by policy id."""

    def __init__(self) -> None:
        self._filters: dict[str, Any] = {}

    def merge(self, theirs: Iterable[Mapping[str, Any]]) -> None:
        """Take in what workers saw since they were last asked."""
        for filters in theirs:
            for policy_id, seen in filters.items():
                if policy_id in self._filters:
                    self._filters[policy_id].apply_changes(seen)
                else:
                    self._filters[policy_id] = seen
        for own in self._filters.values():
            own.reset_buffer()

    def forget(self, policy_id: str) -> None:
        """There is no such policy any more; another one of this id begins with nothing."""
        self._filters.pop(policy_id, None)

    def copies(self) -> dict[str, Any]:
        """For workers."""
        return copies_of(self._filters)
