"""What went wrong in all lives of all workers together."""

from __future__ import annotations

from dataclasses import fields

from swath.collect.worker import Tally
from swath.workers.tickets import Name


class Tallies:
    """Keeps the last tally of every life; tallies only grow within a life."""

    def __init__(self) -> None:
        self._of: dict[Name, Tally] = {}

    def note(self, name: Name, tally: Tally) -> int:
        """What this life says of itself by now; how many further frames it has lost since it was last heard of."""
        before = self._of.get(name, Tally())
        self._of[name] = tally
        return tally.frames_discarded - before.frames_discarded

    def total(self) -> Tally:
        """The sum over all lives."""
        tallies = list(self._of.values())
        return Tally(*(sum(getattr(tally, field.name) for tally in tallies) for field in fields(Tally)))
