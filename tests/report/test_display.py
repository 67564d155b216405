"""The display of `stats("both")` of collectors, and the view that shows it."""

import gc
import io
import sys
import threading

import pytest
from rich.console import Console

from swath import Progress
from swath.report.display import Display, as_progress, stats_lines
from toys import DEADLINE_S, end


def of_worker(worker, **changes):
    facts = {"frames": 50, "life": 0, "state": "up", "policy_version": 2, "staleness": 1, **changes}
    return {f"worker_{worker}/{name}": value for name, value in facts.items()}


ALONE = {
    "frames": 100,
    "batches": 2,
    "policy_version": 3,
    **dict.fromkeys(("staleness", "restarts", "workers_lost", "late", "fragments_lost", "env_errors"), 0),
    **dict.fromkeys(("batches_dropped", "episodes"), 0),
    "fps": 25.0,
    "seconds": 4.0,
    "seconds_waiting": 1.0,
    "running": False,
    **of_worker(0, frames=100, state="ready", policy_version=3, staleness=0),
}


def of_fleet(number=2, **changes):
    facts = dict(ALONE)
    for worker in range(number):
        facts |= of_worker(worker)
    facts |= {"workers": number, "workers_alive": number, "staleness": 1}
    return {**facts, "episode_return": 21.5, "episode_length": 33.0, **changes}


HINT = "Ctrl-C stops"
RESULT = {"eval/reward": 475.3, "eval/reward_ci_low": 451.2, "eval/reward_ci_high": 498.0}
RESULT |= {"eval/num_episodes": 20, "eval/step": 512}
EVALUATION = "evaluation 475.3 [451.2, 498], at step 512, 20 episodes"


def opened(*, terminal, width=200):
    """Return a display and a function that returns its output since the last call."""
    console = Console(file=io.StringIO(), width=width, height=40, force_terminal=terminal, color_system=None)
    display = Display(console, "CartPole-v1", ("PPO", "seed 0"), HINT)

    def drawn():
        file, console.file = console.file, io.StringIO()
        return file.getvalue()

    return display, drawn


@pytest.fixture
def picture():
    display, drawn = opened(terminal=True, width=100)
    drawn()
    yield display, drawn
    display.close()


@pytest.fixture
def lines():
    display, drawn = opened(terminal=False)
    return display, lambda: drawn().splitlines()


def test_the_stats_are_a_few_lines():
    facts = of_fleet(2, total_frames=400, restarts=1, error="ValueError: no")
    assert stats_lines(facts, {"policy": -0.01234, "value": 12.31}) == [
        "100 of 400 frames (25 %), 25 frames/s, 0:12 left",
        "return 21.5, length 33",
        "policy -0.0123, value 12.3",
        "waiting 25 %",
        "version 3, 1 behind, 2 of 2 workers",
        "restarts 1",
        "ValueError: no",
    ]
    assert stats_lines({**facts, "seconds_evaluating": 0.5}, {})[2] == "waiting 25 %, evaluating 12 %"
    alone = ["100 frames, 25 frames/s", "return -, length -", "collecting 25 %", "version 3"]
    assert stats_lines(ALONE, {}) == alone
    assert stats_lines({"frames": 0}, {}) == ["0 frames, 0 frames/s", "return -, length -", "version 0"]


def test_the_view_has_all_stats_and_a_row_per_worker(picture):
    display, drawn = picture
    facts = of_fleet(2, **of_worker(1, state="restarting", life=2, staleness=7), total_frames=400)
    display.show_evaluation(RESULT)
    drawn()
    display.show(facts)
    text = drawn()
    for words in ("CartPole-v1", "PPO, seed 0", "━", *stats_lines(facts, {}), EVALUATION, HINT):
        assert words in text
    rows = [line.split() for line in text.splitlines() if "restarting" in line]
    assert rows == [["1", "restarting", "2", "50", "2", "7"]]


def test_the_last_line_is_the_activity_and_disappears_at_the_end(picture):
    display, drawn = picture
    display.set_activity("evaluating")
    assert "evaluating" in drawn()
    display.set_activity("")
    assert HINT in drawn()
    display.show(ALONE)
    drawn()
    display.close()
    display.close()
    assert HINT not in drawn()


def test_lines_come_every_twentieth_of_a_run_and_at_its_end(lines):
    display, printed = lines
    for frames in range(1001):
        display.show({**ALONE, "frames": frames, "total_frames": 1000})
    display.close()
    text = printed()
    assert text[0] == "CartPole-v1: PPO, seed 0"
    assert text[-1].startswith("CartPole-v1: 1,000 of 1,000 frames (100 %), ")
    frames = [int(line.split()[1].replace(",", "")) for line in text if " frames" in line]
    assert frames == [*range(1, 1000, 50), 1000]


def test_lines_are_for_results_and_remarks_and_an_evaluation_is_one_line(lines):
    display, printed = lines
    printed()
    display.set_activity("evaluating")
    remark = 'left out: pip install "swath[video]"' + "!" * 300
    display.print(remark)
    for facts in (RESULT, RESULT, {"completed": 3}):
        display.show_evaluation(facts)
    display.show_evaluation({"mine/reward": 1.0, "mine/step": 3, "mine/num_episodes": 2})
    assert printed() == [
        remark,
        f"CartPole-v1: {EVALUATION}",
        "CartPole-v1: evaluation 1, at step 3, 2 episodes",
    ]


# Views


class Collecting:
    """A stand-in for a collector, with `stats`."""

    def __init__(self, facts):
        self.facts = facts

    def stats(self, workers):
        assert workers == "both"
        return dict(self.facts)


class Judging:
    """A stand-in for an evaluator, with `stats`."""

    result = {}

    def stats(self):
        return {"completed": len(self.result), **self.result}


class Terminal(io.StringIO):
    """A terminal that notifies of its output."""

    def __init__(self):
        super().__init__()
        self.news = threading.Condition()

    def write(self, text):
        with self.news:
            count = super().write(text)
            self.news.notify_all()
        return count

    def await_text(self, text):
        with self.news:
            assert self.news.wait_for(lambda: text in self.getvalue(), DEADLINE_S), self.getvalue()


@pytest.fixture
def terminal():
    return Terminal()


@pytest.fixture
def make(terminal):
    """Return a function that creates views on the terminal, and close them at the end."""
    views = []

    def view(evaluator=None):
        pictures = {"force_terminal": True, "color_system": None, "_environ": {"TERM": "xterm"}}
        console = Console(file=terminal, width=80, height=30, **pictures)
        views.append(Progress(console, evaluator=evaluator, every_s=0.01))
        return views[-1]

    yield view
    for view in views:
        view.close()
    assert not threads()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "swath-progress"]


def test_a_view_follows_its_collector_until_it_is_closed_and_releases_the_terminal(make, terminal):
    collector, streams = Collecting(of_fleet()), (sys.stdout, sys.stderr)
    with make().watch(collector):
        terminal.await_text("100 ")
        collector.facts = of_fleet(frames=4321)
        terminal.await_text("4,321")
        assert sys.stdout is not streams[0]
    assert not threads(), "the view has ended"
    assert (sys.stdout, sys.stderr) == streams
    assert terminal.getvalue().endswith("\x1b[?25h")


def test_a_collector_is_not_kept_alive_and_its_end_ends_the_view(make):
    collector = Collecting(of_fleet())
    view = make().watch(collector)
    thread = view._thread
    del collector
    gc.collect()
    end(thread)
    view.require_idle()


def test_the_newest_evaluation_is_read_from_the_evaluator_with_its_interval(make, terminal):
    collector, evaluator = Collecting(of_fleet()), Judging()
    with make(evaluator=evaluator).watch(collector):
        terminal.await_text("100 ")
        assert "evaluation" not in terminal.getvalue()
        evaluator.result = RESULT
        terminal.await_text("475.3 [451.2, 498]")
        assert "at step 512, 20 episodes" in terminal.getvalue()
        evaluator.result = {**RESULT, "eval/reward": 480.0}
        terminal.await_text("480 [451.2, 498]")


def test_the_argument_of_collectors_is_a_bool_or_a_view():
    assert as_progress(None) is as_progress(False) is None
    assert isinstance(as_progress(True), Progress)
    view = Progress()
    assert as_progress(view) is view
    with pytest.raises(TypeError, match=r"progress=3 must be True, False or a swath\.Progress"):
        as_progress(3)
