"""Runs of pytest with a plugin, in a separate process: our names must be there before test modules are imported."""

import os
import subprocess
import sys
from textwrap import dedent

from peers.shim import FOLDER
from toys import DEADLINE_S


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text))


def run(folder, *command):
    """The output of a run that must succeed."""
    path = os.pathsep.join(filter(None, (str(FOLDER.parent), os.environ.get("PYTHONPATH"))))
    surroundings = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": path}}
    child = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=DEADLINE_S, check=False, **surroundings
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout
