"""Names on the command line, keywords of envs, films, `load_policy`, Atari."""

import importlib
import os
from pathlib import Path

import gymnasium as gym
import named_things
import numpy as np
import pytest
import torch
from cli_toys import TINY

import swath as library
from swath.cli.naming import find_env
from swath.report.checkpoint import load_checkpoint, save_checkpoint
from swath.report.datasets import open_dataset
from swath.rollout.hosts.sources import Source, make_env

COMMANDS = {
    "train": TINY,
    "collect": ("--out", "data", "--frames", "16"),
    "doctor": (),
    "bench": ("--rounds", "1", "--seconds", "0", "--batch", "16", "--backends", "inline", "--envs", "2"),
}


def test_a_name_with_a_colon_is_an_object_of_the_module_or_an_id_that_it_registers():
    assert find_env("named_things:plain", {}) is named_things.plain
    for name in ("named_things:NamedPlain-v0", "CartPole-v1", "CartPole"):
        assert find_env(name, {}) == name


@pytest.mark.usefixtures("lonely")
@pytest.mark.parametrize(
    ("command", "name"), [*((command, "Lonely") for command in COMMANDS), ("doctor", "make"), ("collect", "Lonely-v3")]
)
def test_every_command_finds_modules_of_the_current_folder(command, name, swath):
    code, out, err = swath(command, f"lonely_here:{name}", *COMMANDS[command])
    assert (code, err) == (0, [])
    assert out


@pytest.mark.usefixtures("lonely", "fork_server")
def test_workers_in_processes_find_what_is_in_the_current_folder(swath):
    places = ("--workers", "2", "--eval-backend", "process", "--no-video")
    code, out, err = swath("train", "lonely_here:Lonely-v3", *TINY, *places)
    assert (code, err) == (0, [])
    assert any(": evaluation " in line for line in out)


@pytest.mark.parametrize(("name", "film"), [("Drawn", True), ("plain", False)])
def test_a_class_makes_the_env_of_the_film_if_it_can(name, film, swath):
    _, out, _ = swath("train", f"named_things:{name}", *TINY, "--eval-backend", "none")
    assert Path(f"runs/named_things-{name}-seed0/video.mp4").exists() == film
    assert any(line.startswith("no film: named_things:plain has no render mode") for line in out) != film


UNKNOWN = {
    "CartPol-v1": "CartPol-v1: Environment `CartPol` doesn't exist. Did you mean: `CartPole`?",
    "nowhere:X": "nowhere:X: No module named 'nowhere'; modules must be installed, or in this folder",
    "named_things:plian": "named_things:plian: named_things has no 'plian'; did you mean 'plain'?",
    "named_things:LENGTH": "named_things:LENGTH makes no env; name a class or function that makes an env, or an id",
    "broken_things:X": "broken_things:X: No module named 'nothing_such'",
}


@pytest.mark.parametrize(
    ("command", "name"), [*(("doctor", name) for name in UNKNOWN), *((command, "nowhere:X") for command in COMMANDS)]
)
def test_an_unknown_env_is_one_line(command, name, swath):
    Path("broken_things.py").write_text("import nothing_such")
    importlib.invalidate_caches()
    code, out, err = swath(command, name, *COMMANDS[command])
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith(f"swath: {UNKNOWN[name]}")


RUN = Path("runs/named_things-Drawn-seed0")


def test_keywords_go_to_what_makes_the_env_in_every_command(swath):
    wide = ("named_things:Wide", "--env-kwargs.width", "3")
    assert swath("train", *wide, *TINY, "--no-video")[0] == 0
    code, out, _ = swath("eval", "runs/named_things-Wide-seed0", "--env", "named_things:Wide")
    assert (code, out[-1]) == (0, "every episode as stored")
    assert swath("collect", *wide, "--frames", "16", "--out", "data")[0] == 0
    assert open_dataset("data").load()["observation"].shape == (16, 3)
    assert swath("doctor", *wide)[0] == 0
    assert swath("bench", *wide, "--rounds=1", "--seconds=0", "--batch=16", "--backends=inline", "--envs=2")[0] == 0
    (error,) = swath("collect", "named_things:Wide", "--frames", "32", "--out", "data")[2]
    assert error.startswith("swath: --out data has data of --env-kwargs {'width': 3}, not None; ")
    run = "runs/named_things-Wide-seed0"
    (error,) = swath("train", "named_things:Wide", "--resume", run, "--env-kwargs.width", "4")[2]
    assert error.startswith("swath: --env-kwargs {'width': 4} is {'width': 3} in the run that --resume names")


def test_an_evaluation_is_filmed_if_asked_and_a_run_s_policy_is_one_line(swath):
    swath("train", "named_things:Drawn", *TINY, "--no-video")
    code, out, _ = swath("eval", RUN, "--video", "film.mp4", "--env", "named_things:Drawn")
    assert (code, out[-1]) == (0, "film: film.mp4")
    assert Path("film.mp4").stat().st_size
    policy, saved = library.load_policy(RUN), load_checkpoint(RUN / "checkpoint.safetensors")
    assert all(torch.equal(value, saved["policy"][name]) for name, value in policy.state_dict().items())
    assert library.evaluate_policy(policy, named_things.Plain(), 2, warn=False)[0] == named_things.LENGTH
    with pytest.raises(ValueError, match="no checkpoint at nowhere"):
        library.load_policy("nowhere")


def changed_run(**config):
    state = load_checkpoint("runs/CartPole-v1-seed0/checkpoint.safetensors")
    state["config"] |= config
    save_checkpoint("runs/CartPole-v1-seed0/checkpoint.safetensors", state)


def test_a_checkpoint_runs_no_code_that_it_names(trained):
    changed_run(env="os:system", env_kwargs={"command": "touch ran"})
    again = {
        ("eval",): "swath eval runs/CartPole-v1-seed0/checkpoint.safetensors --env os:system",
        ("train", "--resume"): "swath train os:system --resume runs/CartPole-v1-seed0",
    }
    for words, line in again.items():
        code, out, (error,) = trained(*words, "runs/CartPole-v1-seed0")
        assert (code, out) == (2, [])
        assert "names os:system, and a file must not choose which code runs; if it is yours, name it again: " in error
        assert error.endswith(line)
    policy = library.load_policy("runs/CartPole-v1-seed0")
    assert library.evaluate_policy(policy, "CartPole-v1", 2, warn=False)[0] > 0
    assert not Path("ran").exists()


def test_a_run_of_a_module_continues_if_the_env_is_named_again(swath):
    name, run = "named_things:Plain", "runs/named_things-Plain-seed0"
    lines = swath("train", name, *TINY, "--no-video")[1]
    assert lines[-1] == f"to evaluate it: swath eval {run} --env {name}"
    assert swath("eval", run, "--env", name)[1][-1] == "every episode as stored"
    assert swath("train", name, "--resume", run, "--frames", "384", "--no-video")[0] == 0


@pytest.mark.parametrize("env", [3, None, ["CartPole-v1"]])
def test_a_checkpoint_whose_env_is_no_text_is_refused(env, trained):
    changed_run(env=env)
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors does not fit .*: its env is .*, no name"):
        library.load_policy("runs/CartPole-v1-seed0")
    code, _, (error,) = trained("eval", "runs/CartPole-v1-seed0")
    assert (code, "no name" in error) == (2, True)


def test_the_policy_of_a_run_needs_no_env(swath):
    gym.register("Passing-v0", named_things.Plain)
    swath("train", "Passing-v0", *TINY, "--no-video")
    del gym.registry["Passing-v0"]
    policy = library.load_policy("runs/Passing-v0-seed0")
    assert library.evaluate_policy(policy, named_things.Plain(), 2, warn=False)[0] == named_things.LENGTH


def test_a_warning_of_mujoco_is_printed_once_and_by_workers_not_at_all(capsys, monkeypatch):
    mujoco = pytest.importorskip("mujoco")
    before, make = mujoco.get_mju_user_warning(), find_env("HalfCheetah-v5", {})
    try:
        for process, times in ((os.getpid(), 1), (0, 0)):
            monkeypatch.setattr(os, "getpid", lambda process=process: process)
            make().close()
            for _ in range(2):
                mujoco.get_mju_user_warning()(f"warned by {process}")
            assert capsys.readouterr().err.count(f"MuJoCo: warned by {process}\n") == times
    finally:
        mujoco.set_mju_user_warning(before)


def test_atari_games_get_the_usual_preprocessing():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    env = make_env(Source(find_env("ALE/Pong-v5", {})))
    assert env.observation_space.shape == (4, 84, 84)
    assert env.reset(seed=0)[0].dtype == np.uint8
