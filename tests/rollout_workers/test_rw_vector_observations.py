"""Observations of gymnasium's vector envs are handed out as the env has them: any dtype, any names."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sampling_toys import made_of

from swath.rollout_workers.policy import RandomPolicy

B, F = 2, 5
FINE = 1.0 + 2.0**-40
"""What float32 cannot tell from 1."""


class Fine(gym.Env[Any, Any]):
    """Observes what is finer than float32, in a Dict of names that batches use, too, or alone; ends after 3 steps."""

    def __init__(self, *, nested: bool) -> None:
        box = gym.spaces.Box(-10, 10, (2,), np.float64)
        inner = gym.spaces.Dict({"a.b": box, "next": gym.spaces.MultiBinary(2)})
        self.observation_space = gym.spaces.Dict({"action": box, "done": inner, "reward": box}) if nested else box
        self.action_space = gym.spaces.Discrete(2)
        self._nested, self._at = nested, 0

    def _seen(self) -> Any:
        box = np.array([FINE + self._at, 0])
        inner = {"a.b": -box, "next": np.ones(2, np.int8)}
        return {"action": box, "done": inner, "reward": 2 * box} if self._nested else box

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._at = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._at += 1
        return self._seen(), 0.0, self._at == 3, False, {}


def worker_of(mode: AutoresetMode, *, nested: bool) -> Any:
    """Without preprocessing, which makes float32 of nested observations."""
    settings = {"num_envs_per_env_runner": B, "rollout_fragment_length": F, "_disable_preprocessor_api": True}
    make = lambda: SyncVectorEnv([lambda: Fine(nested=nested)] * B, autoreset_mode=mode)
    return made_of(make, RandomPolicy, **settings)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_any_names_will_do(mode: AutoresetMode):
    with worker_of(mode, nested=True) as worker:
        batch = worker.sample()
    at = np.array([0, 1, 2, 0, 1] * B)
    for name, more in (("obs", 0), ("new_obs", 1)):
        seen = batch[name]
        np.testing.assert_array_equal(seen["action"][:, 0], FINE + at + more)
        np.testing.assert_array_equal(seen["done"]["a.b"][:, 0], -(FINE + at + more))
        np.testing.assert_array_equal(seen["reward"][:, 0], 2 * (FINE + at + more))
        assert (seen["done"]["a.b"].dtype, seen["done"]["next"].dtype) == (np.float64, np.int8)
