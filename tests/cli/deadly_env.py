"""Importing this registers Deadly-v0: the first of its envs to reach the third step takes its process with it."""

import os
import signal
from pathlib import Path

import gymnasium as gym
from told_env import STEP, Told

ID = "deadly_env:Deadly-v0"
MARK = Path("somebody-died")


class Deadly(Told):
    def step(self, action):
        if self._at[STEP] == 2 and not MARK.exists():
            MARK.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


if "Deadly-v0" not in gym.registry:
    gym.register("Deadly-v0", Deadly)
