"""The examples of PPO on Ray's cluster, on a simulator of tensors, and with rollout workers."""

import csv
import re

import pytest
import torch

import ray_cluster
from example_runs import example, lines_of


@pytest.fixture
def run(tmp_path, monkeypatch):
    return lambda name, *words: lines_of(monkeypatch, example(monkeypatch, name), tmp_path, *words)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_pendulums_stand_up(run, device):
    first, *_, last = run("pendulums.py", "--device", device, "--envs", "256", "--frames", "172032")
    (early, before), (late, after) = (_numbers(line) for line in (first, last))
    assert (early, late) == ("8,192", "172,032")
    assert float(before) < -1000
    assert float(after) > -800


def _numbers(line):
    return re.match(r" *([\d,]+) frames   return +(-[\d.]+)   +\d+% upright", line).groups()


def test_the_example_of_ppo_on_ray_trains_and_evaluates_what_it_has_learned(run):
    torch.manual_seed(0)
    with ray_cluster.lending():
        *lines, last = run("ray_ppo.py", "--frames", "12000")
    frames, mean = re.match(r" +([\d,]+) frames   return +([\d.]+)   \[", lines[-1]).groups()
    assert frames == "12,288"
    assert float(mean) > 100, "random actions reach 20"
    assert last.startswith("<RayCollector 2 workers")


@pytest.mark.usefixtures("fork_server")
def test_the_example_of_traffic_trains_both_policies_and_leaves_its_curve(run, tmp_path):
    run("traffic.py", "--iterations", "2", "--workers", "1")
    with (tmp_path / "traffic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["iteration"] for row in rows] == ["0", "1"]
    assert all(float(row["car"]) > -100 and float(row["light"]) > -100 for row in rows)


@pytest.mark.usefixtures("fork_server")
def test_the_example_of_self_play_adds_versions_while_it_runs(run):
    *lines, last = run("self_play.py", "--iterations", "2", "--workers", "1", "--clearly", "-2")
    assert [line.split()[-2] for line in lines] == ["1", "2"]
    assert last.endswith("of 9 positions that can be won")


@pytest.mark.usefixtures("fork_server")
def test_the_example_of_ppo_plays_to_the_end_and_leaves_its_curve(run, tmp_path):
    lines = run("rollout_worker_ppo.py", "--frames", "1024", "--seeds", "0", "1", "--out", "ppo.csv")
    assert [line.split(":")[0] for line in lines] == ["seed 0", "seed 1"]
    assert all(8 < float(line.split()[-1]) <= 500 for line in lines)
    with (tmp_path / "ppo.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["frames"]) for row in rows] == [
        (seed, str(frames)) for seed in "01" for frames in (256, 512, 768, 1024)
    ]
    assert all(8 < float(row["return"]) <= 500 for row in rows)
