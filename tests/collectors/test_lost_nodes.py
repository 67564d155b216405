"""A Ray collector whose nodes are lost, one of several or the only one; on clusters of their own, in any process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import swath

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_nodes.py"
SURROUNDINGS = {
    "PYTHONPATH": str(Path(swath.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "500",  # Ray notices after so many of these that a node is gone
    "RAY_health_check_failure_threshold": "2",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_initial_delay_ms": "500",
}


@pytest.mark.timeout(300)
def test_a_node_is_lost_and_another_comes_while_batches_go_on():
    """The example sees to it that all batches have their size, and ends when all workers are back."""
    pytest.importorskip("ray")
    command = [sys.executable, EXAMPLE, "--per-node", "1"]
    run = subprocess.run(
        command, env={**os.environ, **SURROUNDINGS}, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.returncode == 0, run.stderr
    facts = re.findall(r"(\w.*): (\d+) batches .*workers_alive (\d), restarts (\d+), .* workers_lost (\d)", run.stdout)
    assert [(what, alive, lost) for what, _, alive, _, lost in facts] == [
        ("three nodes", "2", "0"),
        ("a node is lost", "1", "0"),
        ("another has come", "2", "0"),
    ]
    assert [restarts == "0" for *_, restarts, _ in facts] == [True, False, False]
    frames = 200 * sum(int(batches) for _, batches, *_ in facts)
    assert f"{frames} frames were delivered, <RayCollector 2 workers" in run.stdout


ALONE = """
import os, signal, subprocess, ray
from swath import RayCollector, Restarts
from swath.errors import FleetFailed

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
collector = RayCollector(
    "CartPole-v1", frames_per_batch=200, num_collectors=2, remote_configs={"num_cpus": 1}, restarts=Restarts(1000)
)
collector.next()
listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
for pid, parent, name in map(str.split, listed.splitlines()):
    if int(parent) == os.getpid() and name == "raylet":
        os.kill(int(pid), signal.SIGKILL)
try:
    while True:
        collector.next()
except FleetFailed as failed:
    print(f"restarts {collector.stats()['restarts']}: {failed}")
"""


@pytest.mark.timeout(300)
def test_the_only_node_is_lost_and_the_run_ends_at_once():
    """However many restarts are left: a thousand would take hours."""
    pytest.importorskip("ray")
    run = subprocess.run(
        [sys.executable, "-c", ALONE],
        env={**os.environ, **SURROUNDINGS},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    said = re.search(
        r"^restarts (\d+): 0 of 2 workers are left.*no node of the Ray cluster is alive", run.stdout, re.MULTILINE
    )
    assert said is not None, run.stdout
    assert int(said[1]) <= 2
