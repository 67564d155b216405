"""How much a call of `sample()` hands out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quota:
    """What a call hands out.

    Attributes:
        length: F, steps of a fragment.
        fragments: N, how many of them.
        whole_episodes: not fragments, but at least as many steps in whole episodes.
    """

    length: int
    fragments: int
    whole_episodes: bool = False

    @property
    def rows(self) -> int:
        """Steps of a call."""
        return self.length * self.fragments
