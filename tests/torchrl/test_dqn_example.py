"""The example of DQN runs to its end, with as many frames in TorchRL's buffer as were asked for."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrl_dqn.py"


def test_the_example_learns_from_the_buffer_and_says_its_score(tmp_path):
    command = [sys.executable, EXAMPLE, "--frames", "3200"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=110, check=False, env=environ)
    assert child.returncode == 0, child.stderr
    *_, line, score = child.stdout.splitlines()
    assert line.split()[:2] == ["3,200", "frames"]
    assert score.startswith("mean return of 20 episodes: ")
