"""A game of two players who take turns."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from swath.rollout_workers import MultiAgentEnv

MAX_TAKE = 3
"""Stones that a player may take."""


class Nim(MultiAgentEnv):
    """`"first"` and `"second"` take one to three stones in turn; the one who takes the last wins 1, the other loses 1.

    The player to move observes the number of stones, one-hot. A player that leaves a multiple of four wins against any
    play.

    Args:
        stones: largest number of stones at the beginning, which is drawn.
    """

    def __init__(self, stones: int = 12) -> None:
        self.agents = ["first", "second"]
        self._stones = stones
        self.observation_space = spaces.Box(0.0, 1.0, (stones + 1,), np.float32)
        self.action_space = spaces.Discrete(MAX_TAKE)
        super().__init__()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw the stones; the first player moves."""
        super().reset(seed=seed, options=options)
        self._remaining = int(self.np_random.integers(MAX_TAKE + 1, self._stones + 1))
        self._turn = 0
        return self._observation(), {}

    def step(self, action_dict: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Let the player to move take one stone more than its action, or all that remain."""
        mover, other = self.agents[self._turn], self.agents[1 - self._turn]
        self._remaining -= min(int(action_dict[mover]) + 1, self._remaining)
        is_over = self._remaining == 0
        self._turn = 1 - self._turn
        rewards = {mover: 1.0, other: -1.0} if is_over else {mover: 0.0}
        return ({} if is_over else self._observation()), rewards, {"__all__": is_over}, {"__all__": False}, {}

    def _observation(self) -> dict[str, Any]:
        stones = np.zeros(self._stones + 1, dtype=np.float32)
        stones[self._remaining] = 1.0
        return {self.agents[self._turn]: stones}
