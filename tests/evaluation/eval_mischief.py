"""An env and a policy that do what a file says, once, wherever they run on this machine."""

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
    """What mischief raises."""


@dataclass(frozen=True)
class Mischief:
    """Orders to what is built, called and stepped; each is a file in `path`, which is gone once it is obeyed."""

    path: Path

    @classmethod
    def at(cls, path):
        """None so far, in an empty directory."""
        Gate.at(path / "gate")
        return cls(path)

    @property
    def gate(self):
        """Where a hang ends."""
        return Gate(self.path / "gate")

    @property
    def pid(self):
        """The process in which a policy was made last."""
        return int((self.path / "pid").read_text())

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


class UnrulyEnv(UnevenEnv):
    """Obeys where it is built and reset, and in the third step of its episodes, which may have no end."""

    def __init__(self, mischief=None, endless=False):
        super().__init__()
        self.mischief, self.endless = mischief, endless
        self._obey("env")

    def reset(self, **options):
        self._obey("reset")
        begun = super().reset(**options)
        self.length = math.inf if self.endless else self.length
        return begun

    def step(self, action):
        if self.t == 2:
            self._obey("step")
        return super().step(action)

    def _obey(self, where):
        if self.mischief is not None:
            self.mischief.obey(where)


class UnrulyPolicy(Shifted):
    """Obeys where it acts."""

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
    """Six episodes."""
    options = {"num_trajectories": 6, **({"num_gpus": 0} if place == "ray" else {}), **options}
    env, policy = partial(UnrulyEnv, mischief, endless), partial(make_policy, mischief)
    return Evaluator(env, policy_factory=policy, backend=place, **options)
