"""A Ray collector whose nodes are lost, one of several or the only one; on separate clusters, in any process."""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import swath
from toys import DEADLINE_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_nodes.py"
SURROUNDINGS = {
    "PYTHONPATH": str(Path(swath.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "500",  # after some of these periods Ray notices that a node is gone
    "RAY_health_check_failure_threshold": "4",
    "RAY_health_check_timeout_ms": "10000",  # who is gone refuses at once, who is slow answers
    "RAY_health_check_initial_delay_ms": "500",
}


def test_a_node_is_lost_and_another_comes_while_batches_go_on():
    """The example sees to it that all batches have their size, and ends when all workers are back."""
    pytest.importorskip("ray")
    command = [sys.executable, EXAMPLE, "--per-node", "1"]
    with TemporaryDirectory(prefix="ray") as folder:  # where others on this machine do not look for a cluster to join
        run = subprocess.run(
            command,
            env={**os.environ, **SURROUNDINGS, "RAY_TMPDIR": folder, "RAY_ADDRESS": ""},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    facts = re.findall(r"(\w.*): (\d+) batches .*workers_alive (\d), restarts (\d+), .* workers_lost (\d)", run.stdout)
    assert [(event, alive, lost) for event, _, alive, _, lost in facts] == [
        ("three nodes", "2", "0"),
        ("a node is lost", "1", "0"),
        ("another node joined", "2", "0"),
    ]
    assert [restarts == "0" for *_, restarts, _ in facts] == [True, False, False]
    frames = 200 * sum(int(batches) for _, batches, *_ in facts)
    assert f"{frames} frames were delivered, <RayCollector 2 workers" in run.stdout
