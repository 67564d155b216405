"""Envs whose code raises, in all the ways that a user's may."""

import sys

import gymnasium as gym
import numpy as np
from told_env import STEP, Told

AT = 5
"""The step that raises."""


class Locked(Exception):
    """What cannot be built again from its message alone."""

    def __init__(self, door, key):
        super().__init__(f"door {door} needs {key}")


class Mistaken(Told):
    def step(self, action):
        if self._at[STEP] == AT:
            self.open()
        return super().step(action)

    def open(self):
        raise ValueError("the door is locked")


class Wrapped(gym.Wrapper):
    """The mistake lies below wrappers of a library."""

    def __init__(self):
        super().__init__(gym.wrappers.TimeLimit(Mistaken(), 50))


class Calling(Mistaken):
    """A library raises what the user's code called."""

    def open(self):
        np.linalg.inv(np.zeros((2, 2)))


class Chained(Mistaken):
    def open(self):
        try:
            {}["key"]
        except KeyError as missing:
            raise RuntimeError("no key") from missing


class Odd(Mistaken):
    def open(self):
        raise Locked(3, key="a key")


class Leaving(Mistaken):
    def open(self):
        sys.exit("enough")


class Unready(Told):
    def reset(self, *, seed=None, options=None):
        raise ValueError("no maze")


class Unbuilt(Told):
    def __init__(self):
        raise TypeError("no level")


class Short(Told):
    """Its answers are not what an env's are; no line of its own raises."""

    def step(self, action):
        return super().step(action)[:4]


class Bare(Told):
    """Its reset answers as that of old Gym."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]
