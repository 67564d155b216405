"""`swath collect` killed at one moment after the other, each time from the start, and then repeated to its end.

A script, for it forks: `python crashing.py PATH`. It prints the moments: before and after each rename, and in each
gap between two renames the last flush and the first step of an env.
"""

import io
import os
import shutil
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path

import gymnasium as gym
from told_env import ID, Told, require_whole

import swath.cli.run  # noqa: F401  once, and not in every fork
from swath.cli.app import run
from swath.report.datasets import open_dataset

FRAMES, BATCH = 70, 36


def in_fork(work):
    """Do it in another process; its exit code, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(work())
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def watched(name, real, moment):
    def call(*arguments):
        moment(f"before {name}")
        answer = real(*arguments)
        moment(f"after {name}")
        return answer

    return call


def collect(path, moment=lambda name: None):
    os.fsync = watched("flush", os.fsync, moment)
    os.rename, os.replace = (watched("rename", real, moment) for real in (os.rename, os.replace))
    Told.on_step = staticmethod(lambda: moment("step"))
    arguments = ["collect", ID, "--frames", FRAMES, "--batch", BATCH, "--envs", 4, "--out", path]
    with redirect_stdout(io.StringIO()):
        return run([str(one) for one in arguments])


def moments_of(path):
    """The names of all moments of a collection that nobody disturbs."""
    hears, says = os.pipe()

    def undisturbed():
        return collect(path, lambda name: os.write(says, f"{name}\n".encode()))

    assert in_fork(undisturbed) == 0
    os.close(says)
    with os.fdopen(hears) as names:
        return names.read().splitlines()


def deadly(moments):
    """Which of them to die at."""
    chosen, gap = set(), []
    for number, name in enumerate(moments):
        if name.endswith("rename"):
            flushes = [at for at, what in gap if what == "before flush"]
            steps = [at for at, what in gap if what == "step"]
            chosen.update([number, *flushes[-1:], *steps[:1]])
            gap = []
        else:
            gap.append((number, name))
    return sorted(chosen)


def dying_at(number):
    counted = iter(range(number + 1))
    return lambda name: os.kill(os.getpid(), signal.SIGKILL) if next(counted) == number else None


def require_whole_batches(path):
    if (path / "_manifest.json").exists() and len(open_dataset(path)):
        require_whole(path, min(len(open_dataset(path)) * BATCH, FRAMES))


def complete(path):
    require_whole_batches(path)
    code = collect(path)
    require_whole(path, FRAMES)
    left = [name.name for name in path.iterdir() if name.name.startswith(".")]
    assert not left, left
    return code


def disturbed(path, number):
    shutil.rmtree(path)
    assert in_fork(lambda: collect(path, dying_at(number))) == -signal.SIGKILL
    assert in_fork(lambda: complete(path)) == 0


def main(path):
    moments = moments_of(path)
    for number in deadly(moments):
        disturbed(path, number)
        sys.stdout.write(moments[number] + "\n")


if __name__ == "__main__":
    gym.register(ID, Told)
    main(Path(sys.argv[1]))
