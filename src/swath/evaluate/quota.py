"""Which episodes each slot plays: fixed before the first step, so that quick episodes count no more than slow ones.

    4 slots, episodes 0 … 9        slot 0 ▶ 0 4 8     slot 2 ▶ 2 6
                                   slot 1 ▶ 1 5 9     slot 3 ▶ 3 7

An episode's slot, seed and place in the result follow from its number alone, also where the slots are those of several
workers: worker w with B slots has those from w·B on, and knows them as 0 … B-1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Quota:
    """The share of each of S slots in a run of episodes: those whose number leaves the slot's as remainder by S.

    Attributes:
        episodes: numbers of the episodes to play, without gaps.
        num_slots: S, of all workers.
        first_slot: which of them is slot 0 here.
    """

    episodes: range
    num_slots: int
    first_slot: int = 0

    def first_of(self, slot: int) -> int | None:
        """The first episode of this slot; `None` if it has none."""
        return self._if_asked(self.nearest(slot))

    def nearest(self, slot: int) -> int:
        """The first episode that this slot plays, or would play if there were more."""
        start = self.episodes.start
        return start + (self.first_slot + slot - start) % self.num_slots

    def after(self, episode: int) -> int | None:
        """What the slot that played this episode plays next; `None` if that was its last."""
        return self._if_asked(episode + self.num_slots)

    def target(self, slot: int) -> int:
        """How many episodes this slot plays."""
        first = self.first_of(slot)
        return 0 if first is None else len(range(first, self.episodes.stop, self.num_slots))

    def waves(self) -> Iterator[Quota]:
        """The same episodes in runs of at most one per slot, for envs that only reset together."""
        for start in self.episodes[:: self.num_slots]:
            yield replace(self, episodes=range(start, min(start + self.num_slots, self.episodes.stop)))

    def _if_asked(self, episode: int) -> int | None:
        return episode if episode < self.episodes.stop else None
