from pathlib import Path

import pytest
import torch
from cli_toys import TINY

from swath.report.checkpoint import load_checkpoint, save_checkpoint

RUN, OTHER = Path("runs/CartPole-v1-seed0"), Path("runs/CartPole-v1-seed1")
COUNTED = ("episodes where B is better", "where both are equal", "where A is better")


def rows(out):
    return {line.strip()[:19].strip(): line.strip()[19:].split() for line in out if line.startswith(" ")}


def test_the_evaluation_of_a_run_is_repeated_number_by_number(trained):
    code, out, err = trained("eval", RUN)
    assert (code, err) == (0, [])
    assert out[0] == f"CartPole-v1, {RUN}/checkpoint.safetensors, after 256 frames"
    assert out[-1] == "every episode as stored"
    table = rows(out)
    assert table["episodes"] == ["2", "2"]
    for name in ("mean return", "standard deviation", "median"):
        now, stored = table[name]
        assert now == stored


def test_other_episodes_than_the_stored_ones_are_not_compared(trained):
    code, out, _ = trained("eval", RUN, "--episodes", "3")
    assert code == 0
    assert out[-1].startswith("not compared with the stored evaluation, which is of other episodes")
    assert rows(out)["episodes"] == ["3"]


def test_a_policy_that_differs_from_the_stored_one_is_noticed(trained):
    state = load_checkpoint(RUN / "checkpoint.safetensors")
    state["policy"] = {name: torch.zeros_like(value) for name, value in state["policy"].items()}
    save_checkpoint(RUN / "checkpoint.safetensors", state)
    _, out, _ = trained("eval", RUN)
    assert out[-1].startswith("not as stored")


def test_a_file_that_is_no_checkpoint_of_a_run_is_refused_in_one_line(trained):
    save_checkpoint("other.safetensors", {"policy": {}})
    state = load_checkpoint(RUN / "checkpoint.safetensors")
    state["config"]["colour"] = "red"
    save_checkpoint("newer.safetensors", state)
    for name, lacks in {"other": "'progress'", "newer": "'colour'"}.items():
        code, _, (line,) = trained("eval", f"{name}.safetensors")
        assert code == 2
        assert line.startswith(f"swath: {name}.safetensors does not fit `swath train` of this version: ")
        assert lacks in line
    missing = "swath: no checkpoint at nowhere; give a run's folder or its .safetensors file"
    assert trained("eval", "nowhere")[2] == [missing]


def test_two_checkpoints_are_compared_on_the_same_episodes(swath):
    for seed in ("0", "1"):
        swath("train", "CartPole-v1", *TINY, "--seed", seed, "--eval-backend", "none", "--no-video")
    code, out, err = swath("eval", RUN, OTHER, "--episodes", "6", "--seed", "3")
    assert (code, err) == (0, [])
    assert out[0] == "CartPole-v1: A and B play the same 6 episodes"
    table = {line.strip()[:30].strip(): line.strip()[30:].split() for line in out if line.startswith(" ")}
    counts = [int(table[name][0]) for name in COUNTED]
    assert all(table[name][1:] == ["of", "6"] for name in COUNTED)
    assert sum(counts) == 6
    a, b = (float(swath("eval", run, "--episodes=6", "--seed=3")[1][4].split()[-1]) for run in (RUN, OTHER))
    assert float(table["mean difference in return"][0]) == pytest.approx(b - a, abs=0.06)
    assert out[-1].split(":")[0] in {"A is better than B", "B is better than A", "Neither is shown to be better"}


def test_runs_that_cannot_be_compared_are_refused_in_one_line(trained, scripted):
    trained("train", "Scripted-v0", *TINY, "--no-video")
    assert trained("eval", RUN, "runs/Scripted-v0-seed0")[2] == [
        "swath: A was trained on CartPole-v1, B on Scripted-v0; only policies of one env can be compared"
    ]
    assert trained("eval", RUN, RUN, "--episodes", "1")[2] == [
        "swath: --episodes 1: a comparison needs 2 episodes or more"
    ]
