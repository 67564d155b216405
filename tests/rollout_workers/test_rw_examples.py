"""The examples that train with rollout workers."""

import csv

import pytest

from example_runs import example, lines_of

pytestmark = pytest.mark.usefixtures("fork_server")


@pytest.fixture
def run(tmp_path, monkeypatch):
    return lambda name, *words: lines_of(monkeypatch, example(monkeypatch, name), tmp_path, *words)


def test_the_example_of_traffic_trains_both_policies_and_leaves_its_curve(run, tmp_path):
    run("traffic.py", "--iterations", "2", "--workers", "1")
    with (tmp_path / "traffic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["iteration"] for row in rows] == ["0", "1"]
    assert all(float(row["car"]) > -100 and float(row["light"]) > -100 for row in rows)


def test_the_example_of_self_play_adds_versions_while_it_runs(run):
    *lines, last = run("self_play.py", "--iterations", "2", "--workers", "1", "--clearly", "-2")
    assert [line.split()[-2] for line in lines] == ["1", "2"]
    assert last.endswith("of 9 positions that can be won")


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
