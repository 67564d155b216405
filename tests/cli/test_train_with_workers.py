import os
import signal
import subprocess
import sys
from pathlib import Path

import deadly_env
import pytest
import torch
from cli_toys import SMALL, TINY

from swath.cli import run as module
from swath.collectors.multi import ManyWorkers
from swath.errors import FleetFailed
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
    code, lines, err = swath("train", deadly_env.ID, *TINY, "--workers", "2", "--eval-every", "0", "--no-video")
    assert (code, err) == (0, [])
    assert lines[0] == f"{deadly_env.ID}: PPO, 2 process workers of 2 envs, seed 0, cpu"
    assert frames_of(Path("runs/deadly_env-Deadly-v0-seed0")) == [128, 256]
    assert deadly_env.MARK.exists()


def test_when_too_few_workers_are_left_the_run_ends_in_one_line_and_can_go_on(swath, monkeypatch):
    save, draw = module.parts.save_run, ManyWorkers._draw
    saved = []

    def saving(*arguments):
        save(*arguments)
        saved.append(arguments)

    def failing(self):
        if len(saved) > 2:
            raise FleetFailed("0 workers are left, 2 are needed")
        return draw(self)

    monkeypatch.setattr(module.parts, "save_run", saving)
    monkeypatch.setattr(ManyWorkers, "_draw", failing)
    arguments = ["--frames=512", "--eval-every=128", "--no-video"]
    code, _, err = swath("train", "CartPole-v1", *SMALL, *TWO, *arguments)
    assert code == 1
    assert err == [
        f"swath: 0 workers are left, 2 are needed; swath train --resume {RUN} goes on from what was saved",
    ]
    monkeypatch.setattr(ManyWorkers, "_draw", draw)
    assert swath("train", "--resume", RUN)[0] == 0
    assert frames_of(RUN) == [0, 128, 256, 384, 512]


def test_ctrl_c_in_a_terminal_reaches_all_processes_and_the_run_stops_after_its_batch(tmp_path):
    code = "from swath.cli import main; main()"
    options = [*SMALL, "--workers=2", "--frames=1e8", "--eval-every=1e7"]
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
