"""`swath train` evaluates in the background, without a change of the training."""

from pathlib import Path

import pytest
import torch
from cli_toys import SMALL

from swath.learn import PPO
from swath.report.checkpoint import load_checkpoint
from swath.report.sinks import read_rows
from swath.seeds import derive

RUN = ("train", "CartPole-v1", "--frames", "384", *SMALL, "--eval-every", "128", "--no-video")


def evaluations(folder):
    _, rows = read_rows(Path(folder) / "metrics.csv")
    return {row["frames"]: [value for name, value in row.items() if name.startswith("eval/")] for row in rows}


@pytest.fixture
def batches(monkeypatch):
    """Copies of the batches that PPO learns from."""
    update, batches = PPO.update, []

    def watched(self, batch):
        batches.append(batch.clone())
        return update(self, batch)

    monkeypatch.setattr(PPO, "update", watched)
    return batches


def test_training_batches_are_the_same_to_the_last_bit_with_and_without_evaluations(swath, batches):
    for out in ("thread", "none"):
        assert swath(*RUN, "--eval-backend", out, "--out", out)[0] == 0
    for first, second in zip(batches[:3], batches[3:], strict=True):
        assert set(first.keys(True, True)) == set(second.keys(True, True))
        assert all(torch.equal(first[key], second[key]) for key in first.keys(True, True))
    states = [load_checkpoint(Path(out) / "checkpoint.safetensors") for out in ("thread", "none")]
    assert torch.equal(states[0]["random_state"], states[1]["random_state"])
    assert all(torch.equal(value, states[1]["policy"][name]) for name, value in states[0]["policy"].items())


@pytest.mark.usefixtures("fork_server")
def test_a_process_evaluates_what_a_thread_does_and_eval_repeats_it(swath):
    for out in ("thread", "process"):
        assert swath(*RUN, "--eval-backend", out, "--out", out)[0] == 0
    assert list(evaluations("thread")) == ["0", "128", "256", "384"]
    assert evaluations("thread") == evaluations("process")
    assert all(map(all, evaluations("thread").values()))
    for out in ("thread", "process"):
        assert swath("eval", out)[1][-1] == "every episode as stored"


def test_an_error_in_an_evaluation_loses_no_row(swath, scripted):
    step = scripted.step

    def failing(self, action):
        if self.np_random_seed in evaluation_seeds:
            raise ZeroDivisionError("in an evaluation")
        return step(self, action)

    evaluation_seeds = {derive(0, "evaluation", 0, episode) for episode in range(2)}
    scripted.step = failing
    code, _, err = swath("train", "Scripted-v0", "--frames=256", *SMALL, "--eval-every=0", "--no-video")
    assert code == 1
    assert err[0].startswith("swath: ZeroDivisionError: in an evaluation; ")
    assert "in worker 0 (life 0) of an evaluation, backend 'thread'; " in err[0]
    assert [row["frames"] for row in read_rows(Path("runs/Scripted-v0-seed0/metrics.csv"))[1]] == ["128", "256"]
