"""Envs that every library runs on, and what its process reports. Standard library, NumPy and Gymnasium only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

SHORT, LONG = 3, 41
TRUE_MEAN = (SHORT + LONG) / 2
BATCH, RAISED = "survival: batch", "survival: raised"
"""How the lines of `report` begin; Ray prints others."""


class Uneven(gymnasium.Env[Any, Any]):
    """Episodes of 3 or 41 steps with equal chance, by the seed alone; a step is worth 1, the true mean return 22."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:  # noqa: ARG002  RLlib passes one
        self._observation = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._left = SHORT if self.np_random.random() < 0.5 else LONG
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002  none matters
        """Count one step."""
        self._left -= 1
        return self._observation, 1.0, self._left == 0, False, {}


def marked_env(folder: str) -> Any:
    """CartPole-v1; writes a file named after its process, so that survival.py can kill it."""
    Path(folder, str(os.getpid())).touch()
    return gymnasium.make("CartPole-v1")


def report(collect: Callable[[], int]) -> None:
    """Collect until this process is ended or an error is raised; print when each batch came, and its frames."""
    try:
        while True:
            frames = collect()
            print(BATCH, time.monotonic(), frames, flush=True)
    except Exception as error:  # noqa: BLE001  survival.py reads which
        print(RAISED, type(error).__name__, flush=True)
