"""Envs whose observations number episodes and steps, or that raise; and a check of their datasets."""

import sys

import gymnasium as gym
import numpy as np
import torch

from swath.report.datasets import open_dataset

ID = "Numbered-v0"
LENGTH = 7
EPISODE, STEP = 0, 1


class Numbered(gym.Env):
    """Observes a random number of the episode, and the step; `on_step` is called before each step of any env."""

    observation_space = gym.spaces.Box(0, 2.0**24, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)
    on_step = staticmethod(lambda: None)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at = np.array([self.np_random.integers(2**24), 0], np.float64)
        return self._at.copy(), {}

    def step(self, action):
        self.on_step()
        self._at[STEP] += 1
        return self._at.copy(), float(action), bool(self._at[STEP] == LENGTH), False, {}


def require_whole(path, frames):
    """Check the number of frames: no frame twice, an id for each episode, all steps of each episode."""
    rows = open_dataset(path).load()
    assert len(rows) == frames
    ids, observation = rows["collector", "traj_ids"], rows["observation"]
    pairs = torch.stack([ids.double(), observation[:, EPISODE]], 1)
    assert len(pairs.unique(dim=0)) == len(ids.unique()) == len(observation[:, EPISODE].unique())
    for number in ids.unique():
        steps = observation[ids == number][:, STEP]
        assert steps.tolist() == list(range(len(steps)))
    ends = rows["next", "done"].squeeze(-1)
    assert torch.equal(ends, rows["next", "observation"][:, STEP] == LENGTH)


AT = 5
"""The step at which mistaken envs raise."""


class Mistaken(Numbered):
    def step(self, action):
        if self._at[STEP] == AT:
            self.open()
        return super().step(action)

    def open(self):
        raise ValueError("the door is locked")


class Leaving(Mistaken):
    def open(self):
        sys.exit("enough")


class Unready(Numbered):
    def reset(self, *, seed=None, options=None):
        raise ValueError("no maze")


class Unbuilt(Numbered):
    def __init__(self):
        raise TypeError("no level")
