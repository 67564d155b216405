"""Envs and policies that do what a file says, once, wherever they run on this machine."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from swath.evaluators import Evaluator
from toys import Gate


class Broke(Exception):
    """What mischief raises."""


@dataclass(frozen=True)
class Mischief:
    """Orders to what is built, called and stepped; each is a file, which is gone once it is obeyed.

    Attributes:
        path: an empty directory.
    """

    path: Path

    @classmethod
    def at(cls, path):
        """None so far."""
        Gate.at(path / "gate")
        return cls(path)

    @property
    def gate(self):
        """Where a hang ends."""
        return Gate(self.path / "gate")

    def order(self, where, what, times=1):
        """Let this happen there, so many times."""
        for number in range(times):
            (self.path / f"{where}-{number}").write_text(what)

    def obey(self, where):
        """Do what is ordered, if anything is."""
        for file in self.path.glob(f"{where}-*"):
            try:
                what = file.read_text()
                file.unlink()
            except FileNotFoundError:  # somebody else was quicker
                continue
            self._do(what)
            return

    def _do(self, what):
        match what:
            case "raise":
                raise Broke("as it was told to")
            case "exit":
                raise SystemExit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                self.gate.go_through()


class TokenEnv(gym.Env):
    """Episodes of 3 to 9 steps; lengths and rewards follow from the seed, and from the actions."""

    observation_space = spaces.Box(0, 10**6, (2,), np.int64)
    action_space = spaces.Discrete(7)

    def __init__(self, mischief=None, endless=False):
        self.mischief, self.endless, self.closed = mischief, endless, False
        self._obey("env")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._obey("reset")
        self.token, self.t = int(self.np_random.integers(0, 1000)), 0
        return np.array([self.token, 0]), {}

    def step(self, action):
        self.t += 1
        if self.t == 3:
            self._obey("step")
        reward = float((self.token + 3 * int(action)) % 11)
        return np.array([self.token, self.t]), reward, not self.endless and self.t == 3 + self.token % 7, False, {}

    def close(self):
        self.closed = True

    def _obey(self, where):
        if self.mischief is not None:
            self.mischief.obey(where)


class TokenPolicy(torch.nn.Module):
    """Integer actions, the same whatever the batch size."""

    def __init__(self, mischief=None):
        super().__init__()
        self.mischief = mischief
        self.weight = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, observation):
        if self.mischief is not None:
            self.mischief.obey("policy")
        return ((observation[..., 0] + observation[..., 1]) * self.weight.detach().long()) % 7


def make_policy(mischief):
    if mischief is not None:
        mischief.obey("factory")
    return TokenPolicy(mischief)


def evaluator(mischief, place="thread", *, endless=False, **options):
    """Six episodes, 36 steps at most each."""
    asked = {"num_trajectories": 6, "max_steps": 36, "num_gpus": 0} if place == "ray" else {"num_trajectories": 6}
    return Evaluator(
        partial(TokenEnv, mischief, endless),
        policy_factory=partial(make_policy, mischief),
        backend=place,
        **{**asked, **options},
    )
