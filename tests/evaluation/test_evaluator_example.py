"""The example with an evaluator beside PPO runs, and leaves the best weights."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ppo_with_evaluator.py"


def test_the_example_runs_and_leaves_the_best_weights(tmp_path):
    command = [sys.executable, "-W", "error", EXAMPLE, "--frames", "2048"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=110, check=False, env=environ)
    assert child.returncode == 0, child.stderr
    assert [line.split()[0] for line in child.stdout.splitlines()] == ["1,024", "2,048"]
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["best.json", "best.safetensors"]
