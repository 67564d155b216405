"""The examples with TorchRL run, with our collector and with TorchRL's, by changing one import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
OURS, THEIRS = "from swath import Collector", "from torchrl.collectors import Collector"


@pytest.mark.parametrize(
    ("name", "frames", "imported"),
    [("torchrl_ppo.py", 2048, OURS), ("torchrl_ppo.py", 2048, THEIRS), ("torchrl_sac.py", 1200, OURS)],
    ids=["ours", "theirs", "another of ours"],
)
def test_an_example_runs_with_either_collector_by_changing_one_import(tmp_path, name, frames, imported):
    script = (EXAMPLES / name).read_text()
    assert script.count(f"{OURS}  # {THEIRS}\n") == 1
    (tmp_path / name).write_text(script.replace(f"{OURS}  # {THEIRS}\n", f"{imported}\n"))
    command = [sys.executable, "-W", "ignore", name, "--frames", str(frames), "--curve", "curve.csv"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=110, check=False, env=environ)
    assert child.returncode == 0, child.stderr
    assert "mean return of 20 episodes" in child.stdout
    assert (tmp_path / "curve.csv").read_text().startswith("frames,return")
