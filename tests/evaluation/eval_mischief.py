"""An env and a policy that carry out orders in files, once, in any process of this machine."""

import math
import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from uneven_env import Shifted, UnevenEnv

from swath.evaluators import Evaluator
from toys import Gate


class Broke(Exception):
    """The exception of an ordered failure."""


@dataclass(frozen=True)
class Mischief:
    """Orders for envs, policies and factories; each is a file in `path`, which the obeying process removes."""

    path: Path

    @classmethod
    def at(cls, path):
        """Return an object without orders, in an empty directory."""
        Gate.at(path / "gate")
        return cls(path)

    @property
    def gate(self):
        """Return the gate at which a hang ends."""
        return Gate(self.path / "gate")

    @property
    def pid(self):
        """Return the id of the process that made the last policy."""
        return int((self.path / "pid").read_text())

    def order(self, where, action, times=1):
        """Order an action at a place, several times."""
        for number in range(times):
            (self.path / f"{where}-{number}").write_text(action)

    def obey(self, where):
        """Carry out an order for this place, if there is one."""
        for file in self.path.glob(f"{where}-*"):
            try:
                action = file.read_text()
                file.unlink()
            except FileNotFoundError:  # another process was quicker
                continue
            self._do(action)
            return

    def _do(self, action):
        match action:
            case "raise":
                raise Broke("ordered")
            case "exit":
                raise SystemExit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                self.gate.go_through()


class UnrulyEnv(UnevenEnv):
    """Obeys when it is built and reset, and in the third step of its episodes, which may be endless."""

    def __init__(self, mischief=None, endless=False):
        super().__init__()
        self.mischief, self.endless = mischief, endless
        self._obey("env")

    def reset(self, **options):
        self._obey("reset")
        result = super().reset(**options)
        self.length = math.inf if self.endless else self.length
        return result

    def step(self, action):
        if self.t == 2:
            self._obey("step")
        return super().step(action)

    def _obey(self, where):
        if self.mischief is not None:
            self.mischief.obey(where)


class UnrulyPolicy(Shifted):
    """Obeys when it acts."""

    def __init__(self, mischief=None):
        super().__init__()
        self.mischief = mischief

    def forward(self, observation):
        if self.mischief is not None:
            self.mischief.obey("policy")
        return super().forward(observation)


def make_policy(mischief):
    if mischief is not None:
        (mischief.path / "pid").write_text(str(os.getpid()))
        mischief.obey("factory")
    return UnrulyPolicy(mischief)


def evaluator(mischief=None, place="thread", *, endless=False, **options):
    """Return an evaluator of six episodes."""
    options = {"num_trajectories": 6, **({"num_gpus": 0} if place == "ray" else {}), **options}
    env, policy = partial(UnrulyEnv, mischief, endless), partial(make_policy, mischief)
    return Evaluator(env, policy_factory=policy, backend=place, **options)
