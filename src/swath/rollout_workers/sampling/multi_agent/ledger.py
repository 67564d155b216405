"""The transitions of a role's agents, as lists of plain numbers: tuples by the thousand would wake up Python's gc."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import compress
from operator import not_
from typing import Any

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.sampling.multi_agent.seats import Seat

TERMINATED, TRUNCATED = 1, 2
"""How a transition ended, added up."""

ROWS = ("acted", "reached", "before")
"""Fields that refer to observations of the role, or to none of them."""

FIELDS = ("seats", "clocks", "rewards", "ends", *ROWS, "paid", "versions", "infos")


class Ledger:
    """Transitions, one entry of each list.

    Attributes:
        seats: whose.
        clocks: how many steps the env had made before the one that closed it.
        rewards: after clipping.
        ends: `TERMINATED`, `TRUNCATED`, both or 0.
        acted: row of the observation acted on.
        reached: row of the one that it led to.
        before: row acted on in the agent's transition before, or -1.
        paid: the reward of that one.
        versions: of the weights that acted.
        infos: what the env said to the agent with the observation reached.
    """

    def __init__(self) -> None:
        self.seats: list[Seat] = []
        self.clocks: list[int] = []
        self.rewards: list[float] = []
        self.ends: list[int] = []
        self.acted: list[int] = []
        self.reached: list[int] = []
        self.before: list[int] = []
        self.paid: list[float] = []
        self.versions: list[int] = []
        self.infos: list[Any] = []

    def __len__(self) -> int:
        return len(self.seats)

    def add(self, seat: Seat, clock: int, reward: float, ends: int) -> None:
        """Write down the open transition of a seat, which its latest observation closes."""
        self.seats.append(seat)
        self.clocks.append(clock)
        self.rewards.append(reward)
        self.ends.append(ends)
        self.acted.append(seat.acted)
        self.reached.append(seat.row)
        self.before.append(seat.before)
        self.paid.append(seat.paid)
        self.versions.append(seat.version)
        self.infos.append(seat.info)

    def take(self, which: Iterable[bool]) -> Ledger:
        """Take some entries out: these."""
        chosen, taken = list(which), Ledger()
        for name in FIELDS:
            values = getattr(self, name)
            setattr(taken, name, list(compress(values, chosen)))
            setattr(self, name, list(compress(values, map(not_, chosen))))
        return taken

    def take_all(self) -> Ledger:
        """Take all entries out."""
        taken = Ledger()
        for name in FIELDS:
            setattr(taken, name, getattr(self, name))
            setattr(self, name, [])
        return taken

    def renumber(self, rows: Mapping[int, int]) -> None:
        """Rows have other numbers now."""
        for name in ROWS:
            setattr(self, name, [rows[row] for row in getattr(self, name)])

    def column(self, name: str, order: Array, dtype: Any = np.int64) -> Array:
        """A field as an array, in this order."""
        found: Array = np.array(getattr(self, name), dtype=dtype)[order]
        return found
