"""The example of PPO over `RayCollector`, as it stands; on a cluster of its own, so in any process of the test run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import swath

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_ppo.py"
SURROUNDINGS = {
    "PYTHONPATH": str(Path(swath.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
}


@pytest.mark.timeout(300)
def test_the_example_of_ppo_trains_and_evaluates_what_it_has_learned(tmp_path):
    pytest.importorskip("ray")
    command = [sys.executable, EXAMPLE, "--frames", "12000"]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **SURROUNDINGS},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    returns = re.findall(r"([\d,]+) frames   return +([\d.]+)   \[", run.stdout)
    assert returns[-1][0] == "12,288"
    assert float(returns[-1][1]) > 100, "random actions reach 20"
    assert "<RayCollector 2 workers" in run.stdout
