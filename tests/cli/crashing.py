"""`swath collect` killed at one flush of a file after the other, and repeated to its end each time.

A script, for it forks: `python crashing.py PATH`. It prints how often a collection was killed.
"""

import io
import os
import shutil
import signal
import sys
from contextlib import redirect_stdout
from itertools import count
from pathlib import Path

import gymnasium as gym
from told_env import ID, Told, require_whole

import swath.cli.run  # noqa: F401  once, and not in every fork
from swath.cli.app import run
from swath.report.datasets import open_dataset

FRAMES, BATCH, EVERY = 70, 36, 5
flush = os.fsync


def collect(path, dies_at=None):
    """Collect in another process; minus the signal that killed it, or its exit code."""
    if (child := os.fork()) == 0:
        calls = count()
        os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL) if next(calls) == dies_at else flush(file)
        arguments = ["collect", ID, "--frames", FRAMES, "--batch", BATCH, "--envs", 4, "--out", path]
        with redirect_stdout(io.StringIO()):
            os._exit(run([str(one) for one in arguments]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(path):
    kills = 0
    while (code := collect(path, dies_at=1 + kills * EVERY)) != 0:
        assert code == -signal.SIGKILL
        if (path / "_manifest.json").exists() and len(open_dataset(path)):
            require_whole(path, min(len(open_dataset(path)) * BATCH, FRAMES))
        assert collect(path) == 0
        require_whole(path, FRAMES)
        assert not list(path.glob(".*"))
        shutil.rmtree(path)
        kills += 1
    return kills


if __name__ == "__main__":
    gym.register(ID, Told)
    sys.stdout.write(str(main(Path(sys.argv[1]))))
