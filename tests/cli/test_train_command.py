"""`swath train`: its files, Ctrl-C, and resumed runs."""

import json
import signal
import sys
from pathlib import Path

import gymnasium as gym
import imageio_ffmpeg
import matplotlib as mpl
import pytest
from cli_toys import SMALL, TINY

from swath.cli import run as module
from swath.cli.failure import STOPPING, StopRequest
from swath.cli.naming import RunFolder
from swath.report.checkpoint import load_checkpoint
from swath.report.sinks import read_rows

RUN = Path("runs/CartPole-v1-seed0")


def frames_of(folder):
    return [int(row["frames"]) for row in read_rows(folder / "metrics.csv")[1]]


def test_a_run_writes_all_its_files(swath):
    code, out, err = swath("train", "CartPole-v1", *TINY)
    assert (code, err) == (0, [])
    assert f"film: {RUN / 'video.mp4'}" in out
    names = "best.safetensors checkpoint.safetensors curve.png metrics.csv summary.json tensorboard video.mp4"
    assert sorted(path.name for path in RUN.iterdir()) == names.split()
    assert frames_of(RUN) == [0, 128, 256]
    assert mpl.image.imread(RUN / "curve.png").shape == (675, 1200, 4)
    summary = json.loads((RUN / "summary.json").read_text())
    assert (summary["ended"], summary["frames"], summary["seed"]) == ("finished", 256, 0)
    assert len(summary["evaluation"]["returns"]) == summary["evaluation"]["num_episodes"] == 2
    assert summary["evaluation"]["reward_ci_low"] <= summary["evaluation"]["reward"]
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(RUN / "video.mp4"))
    assert frames == summary["evaluation"]["lengths"][0]
    assert any((RUN / "tensorboard").iterdir())


def test_runs_never_share_a_folder(trained):
    trained("train", "CartPole-v1", *TINY, "--no-video")
    assert sorted(path.name for path in Path("runs").iterdir()) == ["CartPole-v1-seed0", "CartPole-v1-seed0-2"]
    code, _, err = trained("train", "CartPole-v1", *TINY, "--out", RUN)
    assert code == 2
    assert err[0].startswith(f"swath: --out {RUN} is not empty; choose another folder, or continue its run: ")


def test_a_resumed_run_goes_on_where_it_was(trained):
    before = load_checkpoint(RUN / "checkpoint.safetensors")
    code, out, _ = trained("train", "CartPole-v1", "--resume", RUN, "--frames", "512", "--envs", "2", "--no-video")
    after = load_checkpoint(RUN / "checkpoint.safetensors")
    assert code == 0
    assert out[1] == "continues at 256 frames; simulators are not saved, so episodes begin again"
    assert frames_of(RUN) == [0, 128, 256, 384, 512]
    assert (before["learner"]["updates"], after["learner"]["updates"]) == (2, 4)
    assert after["collector"]["life"] > before["collector"]["life"]
    assert after["progress"]["seconds"] > before["progress"]["seconds"]
    assert json.loads((RUN / "summary.json").read_text())["config"]["frames"] == 512


def test_ctrl_c_stops_after_the_running_batch_and_keeps_everything(swath, interrupting):
    interrupting(200)
    code, out, _ = swath("train", "Scripted-v0", *SMALL, "--frames=1000", "--eval-every=0")
    folder = Path("runs/Scripted-v0-seed0")
    assert code == 130
    assert frames_of(folder) == [128, 256]
    assert json.loads((folder / "summary.json").read_text())["ended"] == "stopped"
    assert load_checkpoint(folder / "checkpoint.safetensors")["progress"]["frames"] == 256
    assert (folder / "curve.png").is_file()
    assert "stopping after this batch; Ctrl-C again ends at once" in out
    assert "stopped at 256 frames; to continue:" in out
    assert f"  swath train --resume {folder}" in out
    assert swath("train", "--resume", folder, "--frames", "384", "--no-video")[0] == 0
    assert frames_of(folder) == [128, 256, 384]


def test_on_env_error_a_training_goes_on_and_an_evaluation_that_fails_is_left_out(swath, scripted):
    failing = iter([False] * 200 + [True] + [False] * 10_000)

    def step(self, action, plain=scripted.step):
        if next(failing):
            raise ZeroDivisionError("once")
        return plain(self, action)

    scripted.step = step
    run = ("train", "Scripted-v0", "--frames=384", *SMALL, "--no-video", "--eval-backend=none")
    assert swath(*run, "--on-env-error=reset")[0] == 0
    assert json.loads((Path("runs/Scripted-v0-seed0") / "summary.json").read_text())["frames"] == 384
    failing = iter([False] * 384 + [True] * 10_000)  # the evaluation at the end
    code, out, _ = swath(*run[:-1], "--eval-every=0", "--on-env-error=restart")
    assert code == 0
    assert "no evaluation at 384 frames: once" in out


@pytest.mark.parametrize(("episodes", "evaluated"), [(2, [0, 128, 256, 384]), (20, [384])])
def test_no_evaluation_but_the_last_begins_beyond_a_quarter_of_the_frames(episodes, evaluated, swath, scripted):
    arguments = ("--frames=384", *SMALL[:-1], episodes, "--no-video")
    assert swath("train", "Scripted-v0", *arguments)[0] == 0  # episodes have 8 steps
    rows = read_rows(Path("runs/Scripted-v0-seed0/metrics.csv"))[1]
    assert [int(row["frames"]) for row in rows if row.get("eval/reward")] == evaluated


class Death(BaseException):
    """No code of the library catches it."""


@pytest.mark.parametrize("died_after", [1, 3, 4])
def test_wherever_a_run_dies_its_files_agree_and_it_can_be_resumed(died_after, swath, scripted, monkeypatch):
    step = scripted.step

    def rising(self, action):
        observation, _, *rest = step(self, action)
        return observation, float(scripted.steps), *rest

    scripted.step = rising  # so that every evaluation is the best so far
    save, saves = module.parts.save_run, []

    def dying(*arguments):
        save(*arguments)
        saves.append(arguments)
        if len(saves) == died_after:
            raise Death

    monkeypatch.setattr(module.parts, "save_run", dying)
    with pytest.raises(Death):
        swath("train", "Scripted-v0", *SMALL, "--frames=384", "--eval-every=128", "--no-video")
    folder = RunFolder(Path("runs/Scripted-v0-seed0"))
    saved = load_checkpoint(folder.best)["progress"]
    if folder.checkpoint.exists():
        progress = load_checkpoint(folder.checkpoint)["progress"]
        assert progress["frames"] in frames_of(folder.path)
        assert saved["best"] >= progress["best"]
        assert swath("train", "--resume", folder.path, "--no-video")[0] == 0
        assert frames_of(folder.path) == [0, 128, 256, 384]


def test_a_checkpoint_does_not_fit_an_env_that_has_changed(swath, scripted):
    swath("train", "Scripted-v0", *TINY, "--no-video")
    folder = Path("runs/Scripted-v0-seed0")
    scripted.observation_space = gym.spaces.Box(-1, 1, (5,))
    for arguments in (["train", "--frames", "512", "--resume"], ["eval"]):
        code, _, err = swath(*arguments, folder)
        assert (code, len(err)) == (2, 1)
        assert err[0].startswith(f"swath: {folder}/checkpoint.safetensors does not fit the present Scripted-v0 (")
        assert "size mismatch" in err[0]


def test_missing_extras_cost_one_line_each_and_not_the_run(swath, monkeypatch):
    missing = {"tensorboard": "TensorBoard events", "matplotlib": "curve", "imageio_ffmpeg": "film"}
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    code, out, _ = swath("train", "CartPole-v1", *TINY)
    assert code == 0
    for feature, extra in zip(missing.values(), ("tensorboard", "plot", "video"), strict=True):
        assert [text for text in out if text.startswith(f"no {feature}: ") and f'pip install "swath[{extra}]"' in text]
    assert not {"tensorboard", "curve.png", "video.mp4"} & {path.name for path in RUN.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2", "--backend", "thread"], "--workers 2 is 1 in the run that --resume names; leave it out"),
        (["--envs", "3"], "--envs 3 is 2 in the run that --resume names; leave it out"),
        (["Pendulum-v1"], "ENV Pendulum-v1 is CartPole-v1 in the run that --resume names; leave it out"),
        ([], "--resume runs/CartPole-v1-seed0: 256 of 256 frames are done; give more with --frames"),
    ],
)
def test_an_option_that_a_resumed_run_cannot_change_is_refused(arguments, message, trained):
    code, _, err = trained("train", *arguments, "--resume", RUN)
    assert (code, err) == (2, ["swath: " + message])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_requests_a_stop_and_the_second_calls_the_earlier_handler(number, code, capsys):
    received = []
    before = signal.signal(number, lambda *arguments: received.append(arguments[0]))
    try:
        with StopRequest(print) as stop:
            signal.raise_signal(number)
            assert (stop.requested, stop.exit_code, received) == (number, code, [])
            assert capsys.readouterr().out == STOPPING + "\n"
            signal.raise_signal(number)
            assert received == [number]
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_the_process_ignored_stays_ignored(ignored):
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        with StopRequest(print) as stop:
            signal.raise_signal(ignored)
            assert not stop.requested
        assert signal.getsignal(ignored) is signal.SIG_IGN
    finally:
        signal.signal(ignored, before)
