"""What users of the commands asked for: keywords for envs, films of evaluations, a run's policy in one line, Atari."""

from pathlib import Path

import named_things
import numpy as np
import pytest
import torch
from cli_toys import TINY

import swath as library
from swath.cli.naming import env_named
from swath.report.checkpoint import load_checkpoint
from swath.report.datasets import open_dataset
from swath.rollout.hosts.sources import Source, make_env

RUN = Path("runs/named_things-Drawn-seed0")


def test_keywords_go_to_what_makes_the_env_in_every_command(swath):
    wide = ("named_things:Wide", "--env-kwargs.width", "3")
    assert swath("train", *wide, *TINY, "--no-video")[0] == 0
    code, out, _ = swath("eval", "runs/named_things-Wide-seed0")
    assert (code, out[-1]) == (0, "every episode as stored")
    assert swath("collect", *wide, "--frames", "16", "--out", "data")[0] == 0
    assert open_dataset("data").load()["observation"].shape == (16, 3)
    assert swath("doctor", *wide)[0] == 0
    assert swath("bench", *wide, "--rounds=1", "--seconds=0", "--batch=16", "--backends=inline", "--envs=2")[0] == 0
    (said,) = swath("collect", "named_things:Wide", "--frames", "32", "--out", "data")[2]
    assert said.startswith("swath: --out data holds data of --env-kwargs {'width': 3}, not None; ")
    (said,) = swath("train", "--resume", "runs/named_things-Wide-seed0", "--env-kwargs.width", "4")[2]
    assert said.startswith("swath: --env-kwargs {'width': 4} is {'width': 3} in the run that --resume names")


def test_an_evaluation_is_filmed_if_asked_and_a_run_s_policy_is_one_line(swath):
    swath("train", "named_things:Drawn", *TINY, "--no-video")
    assert swath("eval", RUN, "--video", "film.mp4")[0] == 0
    assert Path("film.mp4").stat().st_size
    policy, saved = library.load_policy(RUN), load_checkpoint(RUN / "checkpoint.safetensors")
    assert all(torch.equal(value, saved["policy"][name]) for name, value in policy.state_dict().items())
    assert library.evaluate_policy(policy, named_things.Plain(), 2, warn=False)[0] == named_things.LENGTH
    with pytest.raises(ValueError, match="no checkpoint at nowhere"):
        library.load_policy("nowhere")


def test_atari_games_are_preprocessed_as_agents_are_used_to():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    env = make_env(Source(env_named("ALE/Pong-v5", {})))
    assert env.observation_space.shape == (4, 84, 84)
    assert env.reset(seed=0)[0].dtype == np.uint8
