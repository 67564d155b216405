"""Episodes of 3 or 41 steps with equal chance, each step worth 1: the true mean return is 22.

Gymnasium only: the children that stand for other libraries import it too.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

SHORT, LONG = 3, 41
TRUE_MEAN = (SHORT + LONG) / 2


class Uneven(gym.Env[Any, Any]):
    """How long an episode is depends on nothing but its seed."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:  # noqa: ARG002  RLlib gives one
        self._observation = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._left = SHORT if self.np_random.random() < 0.5 else LONG
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002  none matters
        """One step nearer to the end."""
        self._left -= 1
        return self._observation, 1.0, self._left == 0, False, {}
