import io
import math

import pytest
from rich.console import Console

from swath.report.display import PlainDisplay
from swath.report.live_display import HINT, LiveDisplay, create_display
from swath.report.picture import progress_words
from swath.report.status import EvalPoint, Pace, RunTitle, Status

TITLE = RunTitle("CartPole-v1", ("PPO", "8 envs", "seed 0", "cpu"), total_frames=1000)
LOSSES = {"policy": -0.01234, "value": 12.31}


def status(frames, **changes):
    return Status(frames, frames_per_second=5000.4, seconds_left=75.0, **{"episode_return": 21.5, **changes})


def plain(clock=lambda: 0.0):
    file = io.StringIO()
    return PlainDisplay(Console(file=file, width=40), TITLE, clock), lambda: file.getvalue().splitlines()


def terminal(width=80, **settings):
    return Console(file=io.StringIO(), width=width, height=24, force_terminal=True, color_system=None, **settings)


def test_a_plain_line_says_everything_however_narrow_the_console_is():
    display, lines = plain()
    display.update(status(250, losses=LOSSES))
    assert lines() == [
        "CartPole-v1: PPO, 8 envs, seed 0, cpu, 1,000 frames",
        "250 of 1,000 frames (25 %), return 21.5, length -, policy -0.0123, value 12.3, 5,000 frames/s, 1:15 left",
    ]


def test_plain_lines_come_every_twentieth_of_the_run_and_at_its_end():
    display, lines = plain()
    for frames in range(1, 1001):
        display.update(status(frames))
    numbers = [int(line.split()[0].replace(",", "")) for line in lines()[1:]]
    assert numbers == [*range(1, 1000, 50), 1000]


def test_a_slow_run_still_prints_a_line_a_minute():
    seconds = iter(range(0, 10_000, 20))
    display, lines = plain(lambda: next(seconds))
    for frames in range(10):
        display.update(status(frames))
    assert [line.split()[0] for line in lines()[1:]] == ["0", "3", "6", "9"]


def test_a_plain_evaluation_shows_its_interval_if_it_has_one():
    display, lines = plain()
    display.evaluated(EvalPoint(512, 475.345, 451.2, 498.04, episodes=20))
    display.evaluated(EvalPoint(512, 475.345, episodes=1))
    assert lines()[1:] == [
        "512 frames: evaluation 475.3 [451.2, 498.0], 20 episodes",
        "512 frames: evaluation 475.3, 1 episodes",
    ]


def test_plain_lines_are_for_results_only():
    display, lines = plain()
    display.doing("evaluating")
    display.close()
    assert len(lines()) == 1


def test_a_pipe_gets_lines_and_a_terminal_a_picture():
    assert isinstance(create_display(Console(file=io.StringIO()), TITLE), PlainDisplay)
    assert isinstance(create_display(terminal(_environ={"TERM": "dumb"}), TITLE), PlainDisplay)
    display = create_display(terminal(_environ={"TERM": "xterm"}), TITLE)
    assert isinstance(display, LiveDisplay)
    display.close()


@pytest.mark.parametrize("width", [80, 120, 60])
def test_the_picture_holds_every_fact_and_fits_the_terminal(width):
    console = terminal(width)
    display = LiveDisplay(console, TITLE)
    for frames in range(0, 800, 50):
        display.update(status(frames, episode_return=float(frames), losses=LOSSES))
    display.evaluated(EvalPoint(512, 475.3, 451.2, 498.0, episodes=20))
    console.file = file = io.StringIO()
    display.update(status(750, losses=LOSSES, episode_length=33.0))
    text = file.getvalue()
    facts = ["CartPole-v1", "seed 0", "75 %, 1:15 left", "750 of 1,000", "5,000 frames/s", "21.5", "▁", "length 33"]
    for fact in [*facts, "475.3 [451.2, 498]", "policy\N{NO-BREAK SPACE}-0.0123", HINT]:
        assert fact in text
    assert max(len(line) for line in text.splitlines()) <= width + len("\x1b[2K\x1b[1A") * 12
    display.close()


def test_the_last_line_says_what_goes_on_and_is_gone_at_the_end():
    console = terminal()
    display = LiveDisplay(console, TITLE)
    console.file = file = io.StringIO()
    display.doing("evaluating, 20 episodes")
    assert "evaluating, 20 episodes" in file.getvalue()
    display.doing("")
    assert HINT in file.getvalue()
    display.update(status(1000))
    console.file = last = io.StringIO()
    display.close()
    display.close()
    assert HINT not in last.getvalue()
    assert "done" in last.getvalue()


def test_a_remark_is_printed_as_it_is():
    console = terminal()
    display = LiveDisplay(console, TITLE)
    display.say('left out: pip install "swath[video]"')
    display.close()
    assert 'left out: pip install "swath[video]"' in console.file.getvalue()


@pytest.mark.parametrize(
    ("share", "left", "words"), [(0.0, math.inf, "0 %"), (0.5, 61.0, "50 %, 1:01 left"), (1.0, 0.0, "done")]
)
def test_progress_is_said_in_words(share, left, words):
    assert progress_words(share, left) == words


def test_pace_tells_rate_and_time_left_from_the_clock():
    pace = Pace(frames=100, now=10.0)
    assert pace.rate(100, 10.0) == 0.0
    assert pace.left(100, 500, 10.0) == math.inf
    assert pace.rate(300, 20.0) == 20.0
    assert pace.left(300, 500, 20.0) == 10.0
    assert pace.left(600, 500, 20.0) == 0.0


def test_a_terminal_that_knows_only_ascii_gets_plain_lines():
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    assert isinstance(create_display(Console(file=latin, force_terminal=True), TITLE), PlainDisplay)
