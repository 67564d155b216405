import signal
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from cli_toys import TINY
from numbered_env import ID, STEP, Numbered, require_whole

from swath.cli.naming import lock_folder
from swath.report.datasets import open_dataset

pytestmark = pytest.mark.usefixtures("fork_server")

OUT = Path("data")


@pytest.fixture
def numbered():
    """Register an env as Numbered-v0; set its `on_step`."""
    env = type("NumberedHere", (Numbered,), {})
    gym.register(ID, env)
    yield env
    del gym.registry[ID]


@pytest.fixture
def collect(swath, numbered):
    """Collect in small batches of four envs, into the folder `data` by default."""

    def call(frames, *options, out=OUT):
        return swath("collect", ID, "--frames", frames, "--batch", "40", "--envs", "4", "--out", out, *options)

    return call


def files_of(path):
    return {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("out", [OUT, Path("data.parquet")])
def test_the_requested_frames_are_written_in_equal_parts(out, collect):
    if out.suffix:
        pytest.importorskip("pyarrow")
    code, lines, err = collect(90, out=out)
    assert (code, err) == (0, [])
    require_whole(out, 90)
    assert [len(part) for part in open_dataset(out)] == [32, 32, 26]
    assert lines[0] == "Numbered-v0: random actions, 4 envs, seed 0"
    assert lines[1].startswith("Numbered-v0: 32 of 90 frames (36 %), ")
    assert lines[-3].startswith("collected 90 frames in ")
    assert lines[-3].endswith(" frames/s")
    assert lines[-2] == f"{out}: 90 frames, 11 ended episodes, 3 parts"
    assert lines[-1] == f"to read: swath.report.datasets.open_dataset({str(out)!r})"


@pytest.mark.parametrize("place", [[], ["--workers=2", "--backend=thread"]])
def test_a_collection_that_fails_often_has_no_frame_twice(place, collect, numbered):
    steps = iter(range(1000))

    def breaking():
        if next(steps) % 60 == 59:
            raise ZeroDivisionError

    numbered.on_step = staticmethod(breaking)
    codes = [collect(200, *place)[0]]
    while codes[-1] == 1:
        codes.append(collect(200, *place)[0])
    assert codes[-1] == 0
    assert len(codes) > 2
    require_whole(OUT, 200)


def test_on_env_error_a_collection_goes_on(collect, numbered):
    steps = iter(range(1000))

    def breaking():
        if next(steps) == 50:
            raise ZeroDivisionError

    numbered.on_step = staticmethod(breaking)
    assert collect(80)[0] == 1
    assert collect(120, "--on-env-error", "reset")[0] == 0, "it is no setting of the data"
    steps = iter(range(30, 1000))
    assert collect(200, "--on-env-error", "reset")[0] == 0
    assert open_dataset(OUT).load()["next", "truncated"].any()


def test_env_processes_make_the_same_data(collect):
    assert collect(40)[0] == 0
    assert collect(40, "--env-processes", "2", out=Path("other"))[0] == 0
    data, other = open_dataset(OUT).load(), open_dataset("other").load()
    assert data["observation"].equal(other["observation"])
    assert collect(80, "--env-processes", "2")[0] == 0, "it is no setting of the data"


def test_float64_is_kept_on_request_and_the_data_have_one_dtype(collect):
    assert collect(40, "--keep-float64")[0] == 0
    assert open_dataset(OUT).load()["observation"].dtype == torch.float64
    code, _, err = collect(80)
    assert (code, err[0].partition("data has")[2]) == (
        2,
        " data of --keep-float64 True, not None; repeat the options to extend it, or choose another --out",
    )
    assert collect(40, out=Path("other"))[0] == 0
    assert open_dataset("other").load()["observation"].dtype == torch.float32


def test_a_trained_policy_acts_greedily_on_request(trained):
    policy = "runs/CartPole-v1-seed0"
    small = ["--frames", "100", "--envs", "2", "--policy", policy]
    code, lines, _ = trained("collect", "CartPole-v1", *small, "--out", "greedy", "--greedy")
    assert code == 0
    assert lines[0] == f"CartPole-v1: {policy}, 2 envs, seed 0"
    trained("collect", "CartPole-v1", *small, "--out", "sampled")
    certain, sampled = (open_dataset(path).load() for path in ("greedy", "sampled"))
    assert certain["action_log_prob"].exp().min() >= 0.5
    assert sampled["action_log_prob"].exp().min() < 0.5


def test_max_episode_steps_truncates_episodes(collect):
    collect(40, "--max-episode-steps", "3")
    rows = open_dataset(OUT).load()
    assert rows["next", "observation"][:, STEP].max() == 3
    assert torch.equal(rows["next", "truncated"].squeeze(-1), rows["next", "observation"][:, STEP] == 3)


def test_ctrl_c_stops_after_the_running_batch_and_the_same_command_continues(collect, numbered):
    steps = iter(range(1000))
    numbered.on_step = staticmethod(lambda: next(steps) == 40 and signal.raise_signal(signal.SIGINT))
    code, lines, _ = collect(120)
    assert code == 130
    assert "stopping after this batch; Ctrl-C again ends at once" in lines
    assert "stopped at 80 frames; the same command continues" in lines
    require_whole(OUT, 80)
    assert collect(120)[0] == 0
    require_whole(OUT, 120)


def test_two_processes_never_write_to_one_place(collect):
    collect(40)
    with lock_folder(OUT, "swath collect"):
        code, _, err = collect(80)
    assert (code, err) == (
        2,
        ["swath: another `swath collect` is at work in data; wait for it, or give another folder"],
    )


def test_where_there_are_no_locks_the_command_works_without(collect, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert collect(40)[0] == 0


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["--seed", "1"], "--seed 0, not 1"),
        (["--backend", "thread"], "--backend inline, not thread"),
        (["--max-episode-steps", "5"], "--max-episode-steps None, not 5"),
        (["--policy", "run"], "--policy random, not "),
    ],
)
def test_data_of_other_settings_are_never_mixed(options, settings, swath, collect):
    if options[0] == "--policy":
        swath("train", ID, *TINY, "--no-video", "--out", "run")
    collect(40)
    before = files_of(OUT)
    code, _, err = collect(80, *options)
    assert code == 2
    assert err[0].startswith(f"swath: --out data has data of {settings}")
    assert err[0].endswith("; repeat the options to extend it, or choose another --out")
    assert files_of(OUT) == before
