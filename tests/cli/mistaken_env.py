"""Envs whose code raises."""

import sys

from told_env import STEP, Told

AT = 5
"""The step that raises."""


class Mistaken(Told):
    def step(self, action):
        if self._at[STEP] == AT:
            self.open()
        return super().step(action)

    def open(self):
        raise ValueError("the door is locked")


class Leaving(Mistaken):
    def open(self):
        sys.exit("enough")


class Unready(Told):
    def reset(self, *, seed=None, options=None):
        raise ValueError("no maze")


class Unbuilt(Told):
    def __init__(self):
        raise TypeError("no level")
