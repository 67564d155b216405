import gc
import io
import sys
import threading

import pytest
from rich.console import Console
from seen_toys import Collecting, Judging, of_fleet

from swath import Progress
from swath.report.display import as_progress

PATIENCE_S = 60
RESULT = {"reward": 475.3, "reward_ci_low": 451.0, "reward_ci_high": 498.0, "num_episodes": 20, "step": 512}

PICTURES = {"force_terminal": True, "color_system": None, "_environ": {"TERM": "xterm"}}


class Terminal(io.StringIO):
    """Tells what was written."""

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
            assert self.news.wait_for(lambda: text in self.getvalue(), PATIENCE_S), self.getvalue()


@pytest.fixture
def terminal():
    return Terminal()


@pytest.fixture
def make(terminal):
    """Makes views on that terminal that are closed at the end."""
    made = []

    def view(every_s=0.01, evaluator=None, **settings):
        console = Console(file=terminal, width=80, height=30, **{**PICTURES, **settings})
        made.append(Progress(console, evaluator=evaluator, every_s=every_s))
        return made[-1]

    yield view
    for one in made:
        one.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "swath-progress"]


def test_a_view_follows_its_collector_until_it_is_closed(make, terminal):
    collector = Collecting(of_fleet())
    with make().watch(collector):
        terminal.await_text("100 ")
        collector.facts = of_fleet(frames=4321)
        terminal.await_text("4,321")
    asked = collector.asked
    collector.facts = of_fleet(frames=5678)
    assert "5,678" not in terminal.getvalue()
    assert collector.asked == asked


def test_the_terminal_is_given_back(make, terminal):
    out, err = sys.stdout, sys.stderr
    collector = Collecting(of_fleet())
    view = make().watch(collector)
    terminal.await_text("100 ")
    assert sys.stdout is not out
    view.close()
    assert (sys.stdout, sys.stderr) == (out, err)
    assert terminal.getvalue().endswith("\x1b[?25h")


def test_a_collector_is_not_kept_alive_and_its_end_ends_the_view(make):
    collector = Collecting(of_fleet())
    view = make().watch(collector)
    thread = view._thread
    del collector
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    view.require_free()


def test_the_newest_evaluation_is_read_from_the_evaluator_with_its_interval(make, terminal):
    collector, evaluator = Collecting(of_fleet()), Judging()
    with make(evaluator=evaluator).watch(collector):
        terminal.await_text("100 ")
        assert "evaluation" not in terminal.getvalue()
        evaluator.result = RESULT
        terminal.await_text("475.3 [451, 498]")
        assert "at step 512, 20 episodes" in terminal.getvalue()
        evaluator.result = {**RESULT, "reward": 480.0}
        terminal.await_text("480 [451, 498]")


def test_the_argument_of_collectors_is_a_bool_or_a_view():
    assert as_progress(None) is as_progress(False) is None
    assert isinstance(as_progress(True), Progress)
    view = Progress()
    assert as_progress(view) is view
    with pytest.raises(TypeError, match=r"progress=3 must be True, False or a swath\.Progress"):
        as_progress(3)
