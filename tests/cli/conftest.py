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
    """Episodes of 8 steps; `on_step` is called with the number of steps of all envs of the class."""

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
        with self.lock:  # evaluations run in another thread
            type(self).steps += 1
            steps = type(self).steps
        self.on_step(steps)
        self._left -= 1
        return self.np_random.random(2, np.float32), 1.0, self._left == 0, False, {}


@pytest.fixture
def scripted():
    """Register an env as Scripted-v0; set its `on_step`."""
    env = type("ScriptedHere", (Scripted,), {})
    gym.register("Scripted-v0", env)
    yield env
    del gym.registry["Scripted-v0"]


@pytest.fixture
def interrupting(scripted):
    """Return a function that presses Ctrl-C at these steps of all envs."""

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
    """Train a run for all tests that start from one; return its folder."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder):
        assert run(["train", "CartPole-v1", *TINY, "--no-video"]) == 0
    return folder


@pytest.fixture
def trained(swath, trained_once):
    """Copy the trained run to `runs/CartPole-v1-seed0`; return `swath`."""
    shutil.copytree(trained_once, ".", dirs_exist_ok=True)
    return swath


@pytest.fixture
def lonely(swath):
    """Write a module `lonely_here` into the current folder, which is not on `sys.path`."""
    Path(f"{lonely_env.NAME}.py").write_text(lonely_env.TEXT)
    importlib.invalidate_caches()
    yield
    sys.modules.pop(lonely_env.NAME, None)
    gym.registry.pop("Lonely-v3", None)
