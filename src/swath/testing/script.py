"""How long episodes last and how they end: scripted, or drawn from the env's random state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

Ending = Literal["terminated", "truncated", "both"]

ENDLESS = 2**20 - 1
"""More steps than any test makes."""


class Plan(NamedTuple):
    """One episode: its steps, and which flags end it."""

    length: int
    ending: Ending

    @property
    def flags(self) -> tuple[bool, bool]:
        """Terminated, truncated at its last step."""
        return self.ending in ("terminated", "both"), self.ending in ("truncated", "both")


class Planner(Protocol):
    """Says what each episode of an env is like."""

    def plan(self, env: int, episode: int, rng: np.random.Generator) -> Plan:
        """The plan of an episode; `rng` is the env's own."""


@dataclass(frozen=True)
class Script:
    """Lengths and endings in turn; env k begins with the k-th, so that envs end at different times.

    Attributes:
        lengths: steps of an episode, each at least 1.
        endings: `"terminated"`, `"truncated"` or `"both"`.
    """

    lengths: tuple[int, ...] = (3, 5, 1, 4)
    endings: tuple[Ending, ...] = ("terminated", "truncated", "both")

    def __post_init__(self) -> None:
        _require(self.lengths, self.endings)

    def plan(self, env: int, episode: int, rng: np.random.Generator | None = None) -> Plan:  # noqa: ARG002  not drawn
        """The same whatever the seed."""
        turn = env + episode
        return Plan(self.lengths[turn % len(self.lengths)], self.endings[turn % len(self.endings)])


@dataclass(frozen=True)
class Drawn:
    """Lengths and endings drawn evenly, so that they follow from the seed of the reset.

    Attributes:
        shortest: fewest steps of an episode, at least 1.
        longest: most steps.
        endings: to choose from.
    """

    shortest: int = 1
    longest: int = 9
    endings: tuple[Ending, ...] = ("terminated", "truncated")

    def __post_init__(self) -> None:
        _require((self.shortest, self.longest - self.shortest + 1), self.endings)

    def plan(self, env: int, episode: int, rng: np.random.Generator) -> Plan:  # noqa: ARG002  only drawn
        """Drawn anew at each reset."""
        length = int(rng.integers(self.shortest, self.longest + 1))
        return Plan(length, self.endings[int(rng.integers(len(self.endings)))])


def _require(lengths: tuple[int, ...], endings: tuple[str, ...]) -> None:
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths {lengths} of episodes must be at least 1, the longest no less than the shortest")
    unknown = [ending for ending in endings if ending not in get_args(Ending)]
    if unknown or not endings:
        raise ValueError(f"endings={endings!r} must be of {', '.join(map(repr, get_args(Ending)))}")
