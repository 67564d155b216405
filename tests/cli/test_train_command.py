"""`swath train`: its files and logs, Ctrl-C, resumed runs, workers, and evaluations in the background."""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import imageio_ffmpeg
import matplotlib as mpl
import pytest
import torch
from cli_toys import SMALL, TINY

from swath import EvalResult
from swath.cli import run as module
from swath.cli.failure import STOPPING, StopRequest, UsageError
from swath.cli.naming import RunFolder
from swath.cli.options import MODULES, parse_logs
from swath.errors import WorkerLost
from swath.evaluation.result import episodes_of
from swath.learn import PPO
from swath.report import sinks as all_sinks
from swath.report.checkpoint import load_checkpoint
from swath.report.sinks import read_rows
from swath.seeds import derive
from toys import DEADLINE_S

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


# ---- further logs than `metrics.csv`


QUICK = [*TINY, "--no-video", "--eval-backend", "none"]


class Noted:
    """A sink that keeps its rows."""

    place = "nowhere"

    def __init__(self, arguments, settings):
        self.arguments, self.settings, self.rows, self.closed = arguments, settings, {}, 0

    def log(self, frames, metrics):
        self.rows[frames] = dict(metrics)

    def close(self):
        self.closed += 1


@pytest.fixture
def noted(monkeypatch):
    """Replace the sinks of the extras; return the opened ones by name."""
    opened = {}

    def instead_of(name):
        def make(*arguments, **settings):
            return opened.setdefault(name, Noted(arguments, settings))

        return make

    for package in MODULES.values():
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    for name in ("WandbSink", "MlflowSink", "PrometheusSink", "TensorBoardSink"):
        monkeypatch.setattr(all_sinks, name, instead_of(name))
    return opened


def test_every_log_gets_every_row_and_is_closed(swath, noted):
    code, out, err = swath("train", "CartPole-v1", *QUICK, "--log", "csv,wandb:mine,mlflow:theirs,prometheus:0")
    assert (code, err) == (0, [])
    assert set(noted) == {"WandbSink", "MlflowSink", "PrometheusSink"}
    _, rows = read_rows(RUN / "metrics.csv")
    for sink in noted.values():
        assert [str(frames) for frames in sink.rows] == [row["frames"] for row in rows] == ["128", "256"]
        assert sink.closed
    about = {"name": RUN.name}
    assert noted["WandbSink"].settings == {**about, "project": "mine"}
    assert noted["MlflowSink"].settings == {**about, "experiment": "theirs"}
    assert noted["PrometheusSink"].arguments == (0, "127.0.0.1")
    assert "wandb: nowhere" in out
    assert not (RUN / "tensorboard").exists()


@pytest.mark.parametrize(("name", "module"), MODULES.items())
def test_a_log_whose_extra_is_missing_is_refused_before_anything_begins(swath, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    code, out, err = swath("train", "CartPole-v1", *QUICK, "--log", name)
    assert (code, out, len(err)) == (2, [], 1)
    assert f'{module} is needed for --log {name}: pip install "swath[{name}]"' in err[0]
    assert not RUN.exists()


@pytest.mark.parametrize("text", ["vandb", "csv:x", "wandb:", "prometheus:x", ""])
def test_unknown_logs_are_refused(text):
    with pytest.raises(UsageError, match=r"must be of csv, tensorboard, wandb\[:PROJECT\]"):
        parse_logs(text)


# ---- evaluation in the background, without a change of the training


EVALUATED = ("train", "CartPole-v1", "--frames", "384", *SMALL, "--eval-every", "128", "--no-video")


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
        assert swath(*EVALUATED, "--eval-backend", out, "--out", out)[0] == 0
    for first, second in zip(batches[:3], batches[3:], strict=True):
        assert set(first.keys(True, True)) == set(second.keys(True, True))
        assert all(torch.equal(first[key], second[key]) for key in first.keys(True, True))
    states = [load_checkpoint(Path(out) / "checkpoint.safetensors") for out in ("thread", "none")]
    assert torch.equal(states[0]["random_state"], states[1]["random_state"])
    assert all(torch.equal(value, states[1]["policy"][name]) for name, value in states[0]["policy"].items())


@pytest.mark.usefixtures("fork_server")
def test_a_process_evaluates_what_a_thread_does_and_eval_repeats_it(swath):
    for out in ("thread", "process"):
        assert swath(*EVALUATED, "--eval-backend", out, "--out", out)[0] == 0
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


# ---- files are written in order although evaluations come later


def result_of(reward, seconds=0.0, n_frames=10**9):
    kinds = ("", "_ci_low", "_ci_high", "_std", "_min", "_max", "_median", "_iqm")
    names = {"num_episodes": 1, "episode_length": 3, "step": 0, "fps": 1.0, "duration_s": seconds}
    names |= {"frames": n_frames if seconds else 0, **{f"reward{kind}": reward for kind in kinds}}
    return EvalResult(
        {f"eval/{name}": value for name, value in names.items()}, episodes_of({0: (reward, 3, True, False, 1)})
    )


class FakeEvaluator(AbstractContextManager):
    """Plays nothing: each outcome comes after some calls of `poll`, or with `wait`."""

    def __init__(self, outcomes, patience):
        self.outcomes, self.patience, self.steps = deque(outcomes), patience, []

    def __exit__(self, *_):
        pass

    def trigger_eval(self, policy, step):
        self.steps.append(step)

    def poll(self):
        self.patience -= 1
        return None if self.patience > 0 else self.wait()

    def wait(self):
        outcome = self.outcomes.popleft()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.fixture
def train(swath, monkeypatch):
    """Train for 640 frames; return the evaluator, the checkpoints in order, and the outcome of the command."""

    def call(*outcomes, patience=1, every="128"):
        evaluator, written = FakeEvaluator(outcomes, patience), []

        def saved(path, state, progress):
            rewards = [float(row["eval/reward"]) for row in read_rows(RUN / "metrics.csv")[1] if row.get("eval/reward")]
            written.append((path.stem, progress.frames, progress.best, rewards))

        monkeypatch.setattr(module.parts, "make_evaluator", lambda config, policy: evaluator)
        monkeypatch.setattr(module.parts, "save_run", saved)
        every = ("--eval-every", every) if every else ()
        outcome = swath("train", "CartPole-v1", "--frames", "640", *SMALL, *every, "--no-video", "--log", "csv")
        return evaluator, written, outcome

    return call


@pytest.mark.parametrize("patience", [1, 100])
def test_rows_and_checkpoints_are_in_order_however_late_evaluations_are(patience, train):
    evaluator, written, (code, _, _) = train(
        *map(result_of, [5.0, float("nan"), 5.0, 6.0, 1.0, 2.0]), patience=patience
    )
    assert (code, evaluator.steps, frames_of(RUN)) == (0, [0, 128, 256, 384, 512, 640], [0, 128, 256, 384, 512, 640])
    assert [at for name, at, *_ in written if name == "checkpoint"] == [0, 128, 256, 384, 512, 640]
    assert [at for name, at, *_ in written if name == "best"] == [0, 384]
    assert [best for name, _, best, _ in written if name == "checkpoint"] == [5.0, 5.0, 5.0, 6.0, 6.0, 6.0]
    for name, _, best, rewards in written:  # the row with the evaluation is there before its checkpoints
        assert name != "best" or rewards[-1] == best


def test_an_evaluation_that_lost_its_workers_is_a_line_and_the_run_continues(train):
    _, written, (code, out, _) = train(WorkerLost("worker 0 died"), *map(result_of, range(5)))
    assert code == 0
    assert "no evaluation at 0 frames: worker 0 died" in out
    assert written[0][:2] == ("checkpoint", 0)


def test_by_default_evaluations_take_at_most_a_quarter_of_the_frames_or_of_the_time(train):
    evaluator, _, _ = train(*(result_of(1.0, seconds=1e6) for _ in range(2)), every=None)
    assert evaluator.steps == [0, 640]
    evaluator, _, _ = train(*map(result_of, range(6)), every=None)
    assert evaluator.steps == [0, 128, 256, 384, 512, 640]


def test_evaluations_of_all_sessions_take_at_most_a_quarter(swath, monkeypatch):
    evaluator = FakeEvaluator([result_of(1.0, seconds=1e6, n_frames=100) for _ in range(3)], 1)
    monkeypatch.setattr(module.parts, "make_evaluator", lambda config, policy: evaluator)
    assert swath("train", "CartPole-v1", "--frames", "640", *SMALL, "--no-video", "--log", "csv")[0] == 0
    assert evaluator.steps == [0, 640]
    assert swath("train", "--resume", RUN, "--frames", "1280", "--no-video")[0] == 0
    assert evaluator.steps == [0, 640, 1280]


# ---- several workers


def test_ctrl_c_in_a_terminal_reaches_all_processes_and_the_run_stops_after_its_batch(tmp_path):
    code = "from swath.cli import main; main()"
    options = [*SMALL, "--workers=2", "--frames=1e8", "--eval-every=1e7", "--no-video", "--log=csv"]
    command = [sys.executable, "-c", code, "train", "CartPole-v1", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    with started as child:
        try:
            line = next((line for line in child.stdout if ": evaluation " in line), "nothing")
            os.killpg(child.pid, signal.SIGINT)
            rest, errors = child.communicate(timeout=DEADLINE_S)
        finally:
            child.kill()
    assert "at step 0" in line
    assert (child.returncode, errors) == (130, "")
    assert "to continue:\n  swath train --resume runs/CartPole-v1-seed0" in rest
