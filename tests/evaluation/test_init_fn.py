"""`init_fn` runs first in each new worker process, before torch is imported and arguments are unpickled."""

import json
import sys

import pytest
import torch_first

import ray_cluster
from swath.errors import NoEffectWarning
from swath.evaluators import Evaluator


@pytest.fixture(autouse=True)
def report(tmp_path, monkeypatch):
    path = tmp_path / "report"
    monkeypatch.setenv(torch_first.REPORT, str(path))
    return path


def options(place, report):
    if place == "process":
        return {"backend": "process"}
    ray_cluster.up()
    return {
        "backend": "ray",
        "num_gpus": 0,
        "ray_kwargs": {"runtime_env": {"env_vars": {torch_first.REPORT: str(report)}}},
    }


def evaluator(init_fn, **arguments):
    return Evaluator(
        torch_first.env,
        policy_factory=torch_first.policy,
        init_fn=init_fn,
        num_trajectories=2,
        max_steps=20,
        **arguments,
    )


@pytest.mark.parametrize("place", ["process", "ray"])
def test_nothing_heavy_is_imported_before_it_though_its_own_module_does_so(place, report):
    assert torch_first.torch is sys.modules["torch"]
    with evaluator(torch_first.note_modules, **options(place, report)) as ev:
        assert ev.evaluate()["eval/num_episodes"] == 2
    found = json.loads(report.read_text())
    assert [name for name in found if place == "process" or name != "numpy"] == []  # Ray itself imports numpy


def test_it_runs_first_in_env_processes_too(report):
    with evaluator(torch_first.note_modules, backend="process", num_envs=2, env_processes=2) as ev:
        assert ev.evaluate()["eval/num_episodes"] == 2
    notes = sorted(report.parent.iterdir())
    assert [path.name for path in notes] == ["report", "report.more"], "env processes have run it not at all, or twice"
    assert [json.loads(path.read_text()) for path in notes] == [[], []]


def test_its_exception_is_the_outcome():
    with evaluator(torch_first.fail, backend="process") as ev:
        for _ in range(2):
            with pytest.raises(LookupError, match="licence expired"):
                ev.evaluate()


def test_with_a_thread_it_is_not_called(monkeypatch):
    monkeypatch.setattr("swath.errors._warned_of", set())
    with pytest.warns(NoEffectWarning, match="init_fn"):
        ev = Evaluator("CartPole-v1", lambda observation: 1, init_fn=torch_first.fail, num_trajectories=1)
    with ev:
        ev.evaluate()
