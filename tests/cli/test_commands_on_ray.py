import os
from pathlib import Path

import pytest
import torch
from cli_toys import EVALUATED

import ray_cluster
import swath.cli.run  # noqa: F401  what it imports is not to be imported while actors are lent
from swath.cli.doctor import probe_cluster
from swath.report.checkpoint import load_checkpoint
from swath.report.datasets import open_dataset
from swath.report.sinks import read_rows


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def evaluations(out):
    rows = read_rows(Path(out, "metrics.csv"))[1]
    return [{name: value for name, value in row.items() if name.startswith("eval/")} for row in rows]


@pytest.mark.usefixtures("fork_server", "lent_actors")
def test_actors_train_and_evaluate_what_processes_and_threads_do_and_continue(swath):
    for out, place, evaluations_on in (("actors", "ray", "ray"), ("processes", "process", "thread")):
        places = ("--workers=2", "--backend", place, "--eval-backend", evaluations_on)
        code, lines, _ = swath("train", "CartPole-v1", *EVALUATED, *places, "--no-video", "--out", out)
        assert code == 0
    assert len(evaluations("actors")[0]) > 5
    assert evaluations("actors") == evaluations("processes")
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


@pytest.mark.usefixtures("lonely")
def test_actors_find_what_is_in_the_current_folder(swath):
    ray_cluster.up()
    options = ("--backend", "ray", "--frames", "16", "--envs", "2", "--out", "data")
    code, _, err = swath("collect", "lonely_here:Lonely-v3", *options)
    assert (code, err) == (0, [])
    assert len(open_dataset("data").load()) == 16


def test_the_doctor_probes_the_running_cluster():
    ray = ray_cluster.up()
    assert probe_cluster({**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}) == {"cpus": 64.0}
