"""How the agents of an episode have ended, and so how the episode did."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from swath.rollout.hosts.by_agent import ALL


class Endings:
    """Agents that have ended since the reset: True for those that terminated."""

    def __init__(self) -> None:
        self._terminated: dict[Hashable, bool] = {}

    @property
    def number(self) -> int:
        """How many have ended."""
        return len(self._terminated)

    def note(self, terminateds: Mapping[Hashable, bool], truncateds: Mapping[Hashable, bool]) -> None:
        """Read the flags of a step."""
        for flags, means in ((truncateds, False), (terminateds, True)):
            if any(flags.values()):
                self._terminated |= {agent: means for agent, flag in flags.items() if flag and agent != ALL}

    def of_all(self, *, over: bool) -> tuple[bool, bool]:
        """The flags of the episode, if it is over: terminated if every agent did, else truncated."""
        terminated = over and all(self._terminated.values())
        return terminated, over and not terminated
