"""Rows that tell what their worker knew: a policy that acts by its one weight, a filter that says how much it has seen.

env ─▶ RoomForOne: [*observation, 0] ─▶ TellingFilter: [*observation, n] ─▶ Telling: its number as the action ─▶ batch
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces

from swath.rollout.spaces import Array
from swath.rollout_workers.filters.mean_std import MeanStdFilter
from swath.rollout_workers.policy import Actions, Policy, Weights
from swath.rollout_workers.policy_views import views


class Telling(Policy):
    """Its weight is a number, and so are all of its actions: each row says which weights acted.

    Attributes:
        number: the weight; 0 at first.
    """

    looks_at_episodes = False

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        super().__init__(observation_space, action_space, config)
        self.view_requirements = views()
        self.number = 0

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Actions:  # noqa: ARG002
        """The number, for every row."""
        return np.full(len(obs_batch), self.number), [], {}

    def get_weights(self) -> Weights:
        """The number, under the name `number`."""
        return {"number": np.array([self.number])}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Act by another number."""
        self.number = int(weights["number"][0])


class TellingFilter(MeanStdFilter):
    """Leaves observations as they are, but for their last number: how many of them it has seen, with this batch.

    Args:
        shape: of an observation.
        rest: as of a `MeanStdFilter`, whose statistics it keeps and shares.
    """

    def __init__(self, shape: Any, *rest: Any) -> None:
        super().__init__(shape, *(rest or (False, False, None)))

    def __call__(self, x: Any, update: bool = True) -> Array:
        """The observations, as a copy."""
        told = np.array(super().__call__(x, update))
        told[..., -1] = self.rs.n
        return told


class RoomForOne(gym.ObservationWrapper[Any, Any, Any]):
    """Adds a number, 0, to the observations of an env with vectors, for a filter to write over."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        low, high = np.append(space.low, np.float32(0)), np.append(space.high, np.float32(np.inf))
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Array) -> Array:
        """The longer one."""
        return np.append(observation, np.float32(0))
