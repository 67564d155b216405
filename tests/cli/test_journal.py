"""Files are written in order although evaluations come later, checked with an evaluator whose results come on call."""

from collections import deque
from types import SimpleNamespace

import pytest

from swath.cli import journal as module
from swath.cli.config import RunConfig
from swath.cli.folder import RunFolder
from swath.cli.journal import MOST_PENDING, Journal, Run
from swath.cli.state import Progress
from swath.errors import WorkerLost
from swath.evaluation.result import EvalResult, episodes_of


def result_of(reward):
    names = {"reward": reward, "reward_ci_low": reward, "reward_ci_high": reward, "num_episodes": 1, "step": 0}
    return EvalResult(
        {f"eval/{name}": value for name, value in names.items()}, episodes_of({0: (reward, 3, True, False, 1)})
    )


class Judge:
    """Plays nothing: an outcome is there when the test says so, or when somebody waits for it."""

    def __init__(self, *outcomes):
        self.outcomes, self.asked, self.ready = deque(outcomes), [], 0

    def trigger_eval(self, policy, step):
        self.asked.append(step)

    def poll(self):
        if not self.ready:
            return None
        self.ready -= 1
        outcome = self.outcomes.popleft()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def wait(self):
        self.ready = max(self.ready, 1)
        return self.poll()


class Story:
    """A run whose files are a list of what was written."""

    def __init__(self, monkeypatch, tmp_path, *outcomes):
        self.written, self.said = [], []
        self.judge = Judge(*outcomes)
        progress = Progress()
        folder = RunFolder(tmp_path)
        monkeypatch.setattr(module, "state_of", lambda config, parts: {})
        monkeypatch.setattr(module, "save_run", self._saved)
        parts = SimpleNamespace(judge=self.judge, policy="policy")
        display = SimpleNamespace(
            evaluated=lambda point: self.said.append(("evaluated", point.step)),
            say=self.said.append,
            doing=self.said.append,
        )
        sink = SimpleNamespace(log=lambda frames, metrics: self.written.append((frames, metrics.get("eval/reward"))))
        self.run = Run(RunConfig("X-v0"), folder, parts, progress)
        self.journal = Journal(self.run, SimpleNamespace(sink=sink, display=display))

    def _saved(self, path, state, progress):
        self.written.append((path.stem, progress.frames, progress.evaluation and progress.evaluation["eval/reward"]))

    def at(self, frames, *, milestone=False, judged=True):
        self.run.progress.frames = frames
        if milestone:
            self.journal.milestone({"loss": 1.0}, judged=judged)
        else:
            self.journal.note({"loss": 1.0})


@pytest.fixture
def story(monkeypatch, tmp_path):
    return lambda *outcomes: Story(monkeypatch, tmp_path, *outcomes)


def test_rows_wait_for_the_evaluation_before_them(story):
    it = story(result_of(5.0))
    it.at(1)
    it.at(2, milestone=True)
    it.at(3)
    assert it.written == [(1, None)]
    it.judge.ready = 1
    it.at(4)
    assert it.written == [(1, None), (2, 5.0), ("best", 2, 5.0), ("checkpoint", 2, 5.0), (3, None), (4, None)]


def test_only_what_is_better_is_the_best_and_a_checkpoint_knows_the_evaluation_of_its_moment(story):
    it = story(result_of(5.0), result_of(float("nan")), result_of(5.0), result_of(6.0))
    for frames in (1, 2, 3, 4):
        it.at(frames, milestone=True)
    it.journal.finish()
    assert [entry[1] for entry in it.written if entry[0] == "best"] == [1, 4]
    assert [entry[1] for entry in it.written if entry[0] == "checkpoint"] == [1, 2, 3, 4]
    assert it.run.progress.best == 6.0
    assert ("checkpoint", 3, 5.0) in it.written


def test_the_training_waits_when_too_many_evaluations_are_pending(story):
    it = story(*map(result_of, range(MOST_PENDING + 1)))
    for frames in range(MOST_PENDING):
        it.at(frames, milestone=True)
    assert it.written == []
    it.at(MOST_PENDING, milestone=True)
    assert it.written[0] == (0, 0)
    assert it.said[0] == "waiting for the evaluation at 0 frames"
    assert it.judge.asked == list(range(MOST_PENDING + 1))


def test_an_evaluation_that_lost_its_workers_is_a_line_and_the_run_goes_on(story):
    it = story(WorkerLost("worker 0 died"), result_of(1.0))
    it.at(1, milestone=True)
    it.at(2, milestone=True)
    it.journal.finish()
    assert "no evaluation at 1 frames: worker 0 died" in it.said
    assert it.written[:2] == [(1, None), ("checkpoint", 1, None)]
    assert it.written[2] == (2, 1.0)


def test_what_the_user_s_code_raised_is_raised_and_costs_no_row(story):
    it = story(ZeroDivisionError("by the env"))

    def telling():
        with it.journal:
            it.at(1, milestone=True)
            it.at(2)
            it.judge.ready = 1
            it.at(3)

    with pytest.raises(ZeroDivisionError, match="by the env"):
        telling()
    assert it.written == [(1, None), (2, None), (3, None)]


def test_a_milestone_that_is_not_judged_is_a_checkpoint_alone(story):
    it = story()
    it.at(1, milestone=True, judged=False)
    assert it.written == [(1, None), ("checkpoint", 1, None)]
    assert it.judge.asked == []
