"""Files are written in order although evaluations come later, checked with an evaluator whose results come on call."""

from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from cli_toys import SMALL

from swath import EvalResult
from swath.cli import run as module
from swath.errors import WorkerLost
from swath.evaluation.result import episodes_of
from swath.report.sinks import read_rows

RUN = Path("runs/CartPole-v1-seed0")


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


def frames():
    return [int(row["frames"]) for row in read_rows(RUN / "metrics.csv")[1]]


@pytest.mark.parametrize("patience", [1, 100])
def test_rows_and_checkpoints_are_in_order_however_late_evaluations_are(patience, train):
    evaluator, written, (code, _, _) = train(
        *map(result_of, [5.0, float("nan"), 5.0, 6.0, 1.0, 2.0]), patience=patience
    )
    assert (code, evaluator.steps, frames()) == (0, [0, 128, 256, 384, 512, 640], [0, 128, 256, 384, 512, 640])
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
