import os
from pathlib import Path

import pytest
import torch
from cli_toys import TINY

import ray_cluster
from swath.cli.machine import ask
from swath.report.checkpoint import load_checkpoint
from swath.report.csv_sink import read_rows
from swath.report.datasets import open_dataset

SMALL = ("--batch", "80", "--envs", "2", "--workers", "2")


@pytest.fixture(scope="module", autouse=True)
def _ray():
    ray_cluster.up()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_actors_collect_and_go_on_with_what_is_there(swath):
    for frames in ("160", "240"):
        assert swath("collect", "CartPole-v1", *SMALL, "--backend", "ray", "--out", "data", "--frames", frames)[0] == 0
    first, second, third = (part["collector", "traj_ids"].unique() for part in open_dataset("data"))
    assert len(open_dataset("data").load()) == 240
    assert not set(third.tolist()) & {*first.tolist(), *second.tolist()}


@pytest.mark.usefixtures("warm_processes")
def test_actors_train_what_processes_do_and_go_on(swath):
    for out, place in (("actors", "ray"), ("processes", "process")):
        code, lines, _ = swath(
            "train", "CartPole-v1", *TINY, "--workers=2", "--backend", place, "--no-video", "--out", out
        )
        assert code == 0
    assert lines[0] == "CartPole-v1: PPO, 2 process workers of 2 envs, seed 0, cpu"
    actors, processes = (load_checkpoint(Path(out) / "checkpoint.safetensors") for out in ("actors", "processes"))
    assert same(actors["policy"], processes["policy"])
    code, lines, _ = swath("train", "--resume", "actors", "--frames", "512", "--no-video")
    assert code == 0
    assert lines[0] == "CartPole-v1: PPO, 2 Ray workers of 2 envs, seed 0, cpu"
    assert [row["frames"] for row in read_rows(Path("actors/metrics.csv"))[1]] == ["0", "128", "256", "384", "512"]
    after = load_checkpoint(Path("actors/checkpoint.safetensors"))
    lives = [[worker["life"] for worker in state["collector"]] for state in (actors, after)]
    assert all(now > before for before, now in zip(*lives, strict=True))
    assert swath("eval", "actors")[1][-1] == "every episode as stored"


def test_an_actor_evaluates_what_a_thread_does(swath):
    for place in ("thread", "ray"):
        assert swath("train", "CartPole-v1", *TINY, "--no-video", "--eval-backend", place, "--out", place)[0] == 0
    found = [
        [{name: value for name, value in row.items() if name.startswith("eval/")} for row in read_rows(path)[1]]
        for path in (Path("thread/metrics.csv"), Path("ray/metrics.csv"))
    ]
    assert len(found[0][0]) > 5
    assert found[0] == found[1]


@pytest.mark.usefixtures("lonely")
@pytest.mark.parametrize("name", ["Lonely", "Lonely-v3"])
def test_actors_find_what_is_in_the_current_folder(name, swath):
    places = ("--workers", "2", "--backend", "ray", "--eval-backend", "ray", "--no-video")
    code, out, err = swath("train", f"lonely_here:{name}", *TINY, *places)
    assert (code, err) == (0, [])
    assert any(": evaluation " in line for line in out)


def test_the_doctor_asks_the_cluster_that_runs():
    import ray

    assert ask({**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}) == {"cpus": 64.0}
