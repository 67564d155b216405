"""A game of two players who take turns."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from swath.rollout_workers import MultiAgentEnv

MOST = 3
"""Stones that a player may take."""


class Nim(MultiAgentEnv):
    """`"first"` and `"second"` take one to three stones in turn; who takes the last wins 1, the other loses 1.

    A player observes how many stones are there, one-hot, when it is to move. Whoever leaves a multiple of four wins
    against any play.

    Args:
        stones: there are at most so many at the beginning; how many is drawn.
    """

    def __init__(self, stones: int = 12) -> None:
        self.agents = ["first", "second"]
        self._stones = stones
        self.observation_space = spaces.Box(0.0, 1.0, (stones + 1,), np.float32)
        self.action_space = spaces.Discrete(MOST)
        super().__init__()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw the stones; the first player moves."""
        super().reset(seed=seed, options=options)
        self._left = int(self.np_random.integers(MOST + 1, self._stones + 1))
        self._turn = 0
        return self._observed(), {}

    def step(self, action_dict: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """The player whose turn it is takes one stone more than its action says, or all that are left."""
        mover, other = self.agents[self._turn], self.agents[1 - self._turn]
        self._left -= min(int(action_dict[mover]) + 1, self._left)
        over = self._left == 0
        self._turn = 1 - self._turn
        rewards = {mover: 1.0, other: -1.0} if over else {mover: 0.0}
        return ({} if over else self._observed()), rewards, {"__all__": over}, {"__all__": False}, {}

    def _observed(self) -> dict[str, Any]:
        stones = np.zeros(self._stones + 1, dtype=np.float32)
        stones[self._left] = 1.0
        return {self.agents[self._turn]: stones}
