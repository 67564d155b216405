import importlib
import shutil
import signal
import sys
import threading
from contextlib import chdir
from pathlib import Path

import gymnasium as gym
import lonely_env
import numpy as np
import pytest
import torch
from cli_toys import TINY

from swath.cli.app import run


class Scripted(gym.Env):
    """Episodes of 8 steps; `on_step` is called with the number of steps that all these envs have made."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0
    lock = threading.Lock()
    on_step = staticmethod(lambda steps: None)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 8
        return self.observation_space.sample(), {}

    def step(self, action):
        with self.lock:  # evaluations run in a thread of their own
            type(self).steps += 1
            steps = type(self).steps
        self.on_step(steps)
        self._left -= 1
        return self.np_random.random(2, np.float32), 1.0, self._left == 0, False, {}


@pytest.fixture
def scripted():
    """An env whose id is Scripted-v0; give it an `on_step`."""
    env = type("ScriptedHere", (Scripted,), {})
    gym.register("Scripted-v0", env)
    yield env
    del gym.registry["Scripted-v0"]


@pytest.fixture
def interrupting(scripted):
    """Let Ctrl-C be pressed at these steps of all envs."""

    def at(*steps):
        scripted.on_step = staticmethod(lambda n: n in steps and signal.raise_signal(signal.SIGINT))

    return at


@pytest.fixture
def swath(tmp_path, monkeypatch, capsys):
    """Run a command line in an empty folder: exit code, lines of stdout, lines of stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # commands put their folder there
    threads = torch.get_num_threads()

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    yield call
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """The folder in which a run has been trained, for all tests that begin with one."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder):
        assert run(["train", "CartPole-v1", *TINY, "--no-video"]) == 0
    return folder


@pytest.fixture
def trained(swath, trained_once):
    """A copy of that run in the current folder, `runs/CartPole-v1-seed0`, and what runs a command line there."""
    shutil.copytree(trained_once, ".", dirs_exist_ok=True)
    return swath


@pytest.fixture
def lonely(swath):
    """A module `lonely_here` in the current folder, which is on no path."""
    Path(f"{lonely_env.NAME}.py").write_text(lonely_env.TEXT)
    importlib.invalidate_caches()
    yield
    sys.modules.pop(lonely_env.NAME, None)
    gym.registry.pop("Lonely-v3", None)
