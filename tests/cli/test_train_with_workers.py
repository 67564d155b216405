import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_toys import SMALL, TINY
from told_env import DEADLY, MARK

from swath.report.checkpoint import load_checkpoint
from swath.report.sinks import read_rows

RUN = Path("runs/CartPole-v1-seed0")
TWO = ("--workers", "2", "--backend", "thread")


def frames_of(folder):
    return [int(row["frames"]) for row in read_rows(folder / "metrics.csv")[1]]


def weights_of(folder):
    return load_checkpoint(Path(folder) / "checkpoint.safetensors")["policy"]


@pytest.mark.usefixtures("warm_processes")
def test_a_process_trains_the_policy_that_this_process_does(swath):
    for out, place in (("here", "inline"), ("there", "process")):
        assert swath("train", "CartPole-v1", *TINY, "--no-video", "--backend", place, "--out", out)[0] == 0
    here, there = weights_of("here"), weights_of("there")
    assert here.keys() == there.keys()
    assert all(torch.equal(value, there[name]) for name, value in here.items())


@pytest.mark.usefixtures("warm_processes")
def test_a_worker_that_is_killed_costs_no_frame_of_the_training(swath):
    code, lines, err = swath("train", DEADLY, *TINY, "--workers", "2", "--eval-every", "0", "--no-video")
    assert (code, err) == (0, [])
    assert lines[0] == f"{DEADLY}: PPO, 2 process workers of 2 envs, seed 0, cpu"
    assert frames_of(Path("runs/told_env-Deadly-v0-seed0")) == [128, 256]
    assert MARK.exists()


def test_ctrl_c_in_a_terminal_reaches_all_processes_and_the_run_stops_after_its_batch(tmp_path):
    code = "from swath.cli import main; main()"
    options = [*SMALL, "--workers=2", "--frames=1e8", "--eval-every=1e7", "--no-video", "--log=csv"]
    command = [sys.executable, "-c", code, "train", "CartPole-v1", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    with started as child:
        try:
            seen = next((line for line in child.stdout if ": evaluation " in line), "nothing")
            os.killpg(child.pid, signal.SIGINT)
            rest, errors = child.communicate(timeout=100)
        finally:
            child.kill()
    assert "at step 0" in seen
    assert (child.returncode, errors) == (130, "")
    assert "to go on:\n  swath train --resume runs/CartPole-v1-seed0" in rest
