"""Cars and traffic lights: two kinds of agents whose interests meet at crossings."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from swath.rollout_workers import MultiAgentEnv

ROAD = 4
"""Cells of a road that leads to a crossing."""


class TrafficGrid(MultiAgentEnv):
    """Cars `"car_0"`, … drive from crossing to crossing; at each a light `"light_0"`, … opens one of two roads.

    A car observes `[cells to the crossing / 4, whether its road is open, 1]` and waits (0) or drives (1): a cell earns
    1, an open crossing too, a closed one costs 2 and the car stays. A light observes `[cars that wait for it on road 0,
    on road 1, the open road]`, cars as a share of all, and says which road is open next: each car that passes earns it
    1, each that waits costs it 0.1. Cars that pass go on to the next crossing, by a road that is drawn.

    Args:
        num_cars: number of cars.
        num_lights: number of crossings.
        length: of an episode, in steps.
    """

    def __init__(self, num_cars: int = 25, num_lights: int = 4, length: int = 50) -> None:
        self._cars = [f"car_{n}" for n in range(num_cars)]
        self._lights = [f"light_{n}" for n in range(num_lights)]
        self._length = length
        self.agents = [*self._cars, *self._lights]
        low, high = np.zeros(3, dtype=np.float32), np.ones(3, dtype=np.float32)
        self.observation_space = spaces.Box(low, high)
        self.action_space = spaces.Discrete(2)
        super().__init__()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put each car somewhere on a road, and open a road at each crossing."""
        super().reset(seed=seed, options=options)
        draw, n_cars, n_lights = self.np_random, len(self._cars), len(self._lights)
        self._crossing, self._road = draw.integers(n_lights, size=n_cars), draw.integers(2, size=n_cars)
        self._distance = draw.integers(ROAD, size=n_cars)
        self._open = draw.integers(2, size=n_lights)
        self._steps = 0
        return self._observation(), {}

    def step(self, action_dict: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Let cars drive at the lights they saw, then lights open the roads they chose."""
        drives = np.array([action_dict[car] == 1 for car in self._cars])
        at_light, is_open = self._distance == 0, self._open[self._crossing] == self._road
        passes = drives & at_light & is_open
        earned = np.where(drives, np.where(at_light & ~is_open, -2.0, 1.0), 0.0)
        lights = self._at_lights(passes) - 0.1 * self._at_lights(at_light & ~passes)
        self._distance[drives & ~at_light] -= 1
        self._advance(passes)
        self._open = np.array([int(action_dict[light]) for light in self._lights])
        self._steps += 1
        rewards = dict(zip(self.agents, [*earned.tolist(), *lights.tolist()], strict=True))
        return self._observation(), rewards, {"__all__": False}, {"__all__": self._steps == self._length}, {}

    def _advance(self, passes: Any) -> None:
        self._crossing[passes] = (self._crossing[passes] + 1) % len(self._lights)
        self._road[passes] = self.np_random.integers(2, size=int(passes.sum()))
        self._distance[passes] = ROAD - 1

    def _at_lights(self, cars: Any) -> Any:
        """Count the cars in the mask at each crossing."""
        return np.bincount(self._crossing[cars], minlength=len(self._lights))

    def _observation(self) -> dict[str, Any]:
        is_open = self._open[self._crossing] == self._road
        cars = np.stack([self._distance / ROAD, is_open, np.ones(len(self._cars))], axis=1, dtype=np.float32)
        waiting = [self._at_lights((self._distance == 0) & (self._road == road)) / len(self._cars) for road in (0, 1)]
        lights = np.stack([*waiting, self._open], axis=1, dtype=np.float32)
        return dict(zip(self.agents, [*cars, *lights], strict=True))
