"""Envs that count their steps and pay no heed to actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class MockEnv(gym.Env[Any, Any]):
    """Observes 0, pays 1, and is over after some steps, with both flags.

    Args:
        episode_length: those.
        config: kept, for a test to look at.
    """

    def __init__(self, episode_length: int, config: Any = None) -> None:
        self.episode_length = episode_length
        self.config = config
        self.i = 0
        self.observation_space = self._observations()
        self.action_space = gym.spaces.Discrete(2)

    def _observations(self) -> gym.spaces.Discrete:
        return gym.spaces.Discrete(1)

    def _seen(self) -> int:
        return 0

    def _paid(self) -> float:
        return 1.0

    def _told(self) -> dict[str, Any]:
        return {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin to count."""
        super().reset(seed=seed, options=options)
        self.i = 0
        return self._seen(), self._told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002  counted, not read
        """Count one more."""
        self.i += 1
        over = self.i >= self.episode_length
        return self._seen(), self._paid(), over, over, self._told()


class MockEnv2(MockEnv):
    """Observes the step it is at, pays 100, and keeps the last seed as `rng_seed`; it can be rendered."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  gymnasium's own declaration

    def __init__(self, episode_length: int) -> None:
        super().__init__(episode_length)
        self.render_mode = "rgb_array"
        self.rng_seed: int | None = None

    def _observations(self) -> gym.spaces.Discrete:
        return gym.spaces.Discrete(self.episode_length + 1)

    def _seen(self) -> int:
        return self.i

    def _paid(self) -> float:
        return 100.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin to count; a seed is kept."""
        self.rng_seed = self.rng_seed if seed is None else seed
        return super().reset(seed=seed, options=options)

    def render(self) -> Any:
        """A picture whose shade is the step it is at."""
        return np.full((300, 400, 3), self.i % 256, np.uint8)


class MockEnv3(MockEnv):
    """Observes, pays and tells in its info the step it is at."""

    def _observations(self) -> gym.spaces.Discrete:
        return gym.spaces.Discrete(100)

    def _seen(self) -> int:
        return self.i

    def _paid(self) -> float:
        return float(self.i)

    def _told(self) -> dict[str, Any]:
        return {"timestep": self.i}
