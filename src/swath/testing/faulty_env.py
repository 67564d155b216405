"""Any gymnasium env, with faults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym

from swath.testing.faults import EnvBroke, Fault, Mishaps, with_more, with_nan


class FaultyEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Does what the env does, and goes wrong where it is told to.

    Args:
        env: any env.
        faults: what goes wrong, or what of that is still to come; `"raise_at_build"` and `"build_nothing"` are for
            factories and do nothing here.
        number: which env it is, for messages.
    """

    def __init__(self, env: gym.Env[Any, Any], faults: Iterable[Fault] | Mishaps, number: int = 0) -> None:
        super().__init__(env)
        self._mishaps = faults if isinstance(faults, Mishaps) else Mishaps(faults)
        self._number = number
        self._episode, self._step = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        if self._mishaps.due("raise_at_reset", self._episode + 1):
            raise EnvBroke(f"env {self._number} raised at the reset of episode {self._episode + 1}")
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode, self._step = self._episode + 1, 0
        return self._seen(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env."""
        if self._mishaps.begin_step(self._episode, self._step + 1):
            raise EnvBroke(f"env {self._number} raised at step {self._step + 1} of episode {self._episode}")
        self._step += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._mishaps.due("nan_reward", self._episode, self._step):
            reward = float("nan")
        return self._seen(observation), reward, terminated, truncated, info

    def close(self) -> None:
        """Close the env."""
        super().close()
        if self._mishaps.due("raise_at_close"):
            raise EnvBroke(f"env {self._number} raised when it was closed")

    def _seen(self, observation: Any) -> Any:
        if self._mishaps.due("nan", self._episode, self._step):
            observation = with_nan(observation)
        return with_more(observation) if self._mishaps.due("shape", self._episode, self._step) else observation
