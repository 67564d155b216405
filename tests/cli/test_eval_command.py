from pathlib import Path

import torch
from conftest import TINY

from swath.report.checkpoint import load_checkpoint, save_checkpoint

RUN = Path("runs/CartPole-v1-seed0")


def rows(out):
    return {line.strip()[:19].strip(): line.strip()[19:].split() for line in out if line.startswith(" ")}


def test_the_evaluation_of_a_run_is_repeated_number_by_number(swath):
    swath("train", "CartPole-v1", *TINY, "--no-video")
    code, out, err = swath("eval", RUN)
    assert (code, err) == (0, [])
    assert out[0] == f"CartPole-v1, {RUN}/checkpoint.safetensors, after 256 frames"
    assert out[-1] == "every episode as stored"
    table = rows(out)
    assert table["episodes"] == ["2", "2"]
    for name in ("mean return", "standard deviation", "median"):
        now, stored = table[name]
        assert now == stored


def test_an_evaluation_uses_as_many_threads_as_the_training(swath):
    swath("train", "CartPole-v1", *TINY, "--no-video")
    torch.set_num_threads(2)
    swath("eval", RUN)
    assert torch.get_num_threads() == 1


def test_more_episodes_than_stored_stand_alone(swath):
    swath("train", "CartPole-v1", *TINY, "--no-video")
    _, out, _ = swath("eval", RUN / "best.safetensors", "--episodes", "3")
    assert rows(out)["episodes"] == ["3"]
    assert "every episode as stored" not in out


def test_a_policy_that_differs_from_the_stored_one_is_noticed(swath):
    swath("train", "CartPole-v1", *TINY, "--no-video")
    state = load_checkpoint(RUN / "checkpoint.safetensors")
    state["policy"] = {name: torch.zeros_like(value) for name, value in state["policy"].items()}
    save_checkpoint(RUN / "checkpoint.safetensors", state)
    _, out, _ = swath("eval", RUN)
    assert out[-1].startswith("not as stored")


def test_what_is_no_checkpoint_of_a_run_is_said_in_one_line(swath):
    save_checkpoint("other.safetensors", {"policy": {}})
    code, _, err = swath("eval", "other.safetensors")
    assert code == 2
    lacks = "it lacks config, progress, learner, collector, random_state"
    assert err == [f"swath: other.safetensors is no checkpoint of `swath train`: {lacks}"]
    assert swath("eval", "nowhere")[2] == [
        "swath: no checkpoint at nowhere; give a run's folder or a .safetensors file of one"
    ]
    assert swath("eval")[0] == 2
