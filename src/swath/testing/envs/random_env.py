"""An env with any spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np


class RandomEnv(gym.Env[Any, Any]):
    """Draws observations and rewards from spaces.

    Args:
        config: `observation_space`, `action_space` (`Discrete(2)`), `reward_space` (a `Box` from -1 to 1),
            `p_terminated` (probability of an end in any step, 0.1), `max_episode_len` (steps until it is truncated,
            None), `check_action_bounds` (actions outside their space are refused, False).
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        config = {} if config is None else config
        self.observation_space = config.get("observation_space", gym.spaces.Discrete(2))
        self.action_space = config.get("action_space", gym.spaces.Discrete(2))
        self.reward_space = config.get("reward_space", gym.spaces.Box(-1.0, 1.0, (), np.float32))
        self.p_terminated = config.get("p_terminated", 0.1)
        self.max_episode_len: int | None = config.get("max_episode_len") or None
        self.check_action_bounds = config.get("check_action_bounds", False)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; a seed is that of everything drawn from now on."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
            self.reward_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Draw again.

        Raises:
            ValueError: an action outside its space, where that is checked.
        """
        if self.check_action_bounds and not self.action_space.contains(action):
            raise ValueError(f"Illegal action for {self.action_space}: {action!r}")
        self.steps += 1
        truncated = self.max_episode_len is not None and self.steps >= self.max_episode_len
        terminated = not truncated and bool(self.np_random.random() < self.p_terminated)
        return self.observation_space.sample(), float(self.reward_space.sample()), terminated, truncated, {}
