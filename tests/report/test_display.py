import io

import pytest
from rich.console import Console
from seen_toys import ALONE, of_fleet, of_worker

from swath.report.display import Display, fact_lines

HINT = "Ctrl-C stops"
RESULT = {"eval/reward": 475.3, "eval/reward_ci_low": 451.2, "eval/reward_ci_high": 498.0}
RESULT |= {"eval/num_episodes": 20, "eval/step": 512}
EVALUATION = "evaluation 475.3 [451.2, 498], at step 512, 20 episodes"


def opened(*, terminal, width=200):
    """A display, and what it has drawn since it was asked last."""
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


def frames_of(text):
    return [int(line.split()[1].replace(",", "")) for line in text if " frames" in line]


def test_the_facts_are_a_few_lines():
    facts = of_fleet(2, total_frames=400, restarts=1, error="ValueError: no")
    assert fact_lines(facts, {"policy": -0.01234, "value": 12.31}) == [
        "100 of 400 frames (25 %), 25 frames/s, 0:12 left",
        "return 21.5, length 33",
        "policy -0.0123, value 12.3",
        "waiting 25 %",
        "version 3, 1 behind, 2 of 2 workers",
        "restarts 1",
        "ValueError: no",
    ]
    assert fact_lines({**facts, "seconds_evaluating": 0.5}, {})[2] == "waiting 25 %, evaluating 12 %"
    alone = ["100 frames, 25 frames/s", "return -, length -", "collecting 25 %", "version 3"]
    assert fact_lines(ALONE, {}) == alone
    assert fact_lines({"frames": 0}, {}) == ["0 frames, 0 frames/s", "return -, length -", "version 0"]


def test_the_picture_holds_every_fact_and_a_row_per_worker(picture):
    display, drawn = picture
    facts = of_fleet(2, **of_worker(1, state="restarting", life=2, staleness=7), total_frames=400)
    display.evaluated(RESULT)
    drawn()
    display.show(facts)
    text = drawn()
    for words in ("CartPole-v1", "PPO, seed 0", "━", *fact_lines(facts, {}), EVALUATION, HINT):
        assert words in text
    rows = [line.split() for line in text.splitlines() if "restarting" in line]
    assert rows == [["1", "restarting", "2", "50", "2", "7"]]


def test_the_last_line_says_what_goes_on_and_is_gone_at_the_end(picture):
    display, drawn = picture
    display.doing("evaluating")
    assert "evaluating" in drawn()
    display.doing("")
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
    assert frames_of(text) == [*range(1, 1000, 50), 1000]


def test_lines_are_for_results_and_remarks_and_an_evaluation_is_one_line(lines):
    display, printed = lines
    printed()
    display.doing("evaluating")
    remark = 'left out: pip install "swath[video]"' + "!" * 300
    display.say(remark)
    for facts in (RESULT, RESULT, {"completed": 3}):
        display.evaluated(facts)
    display.evaluated({"mine/reward": 1.0, "mine/step": 3, "mine/num_episodes": 2})
    assert printed() == [
        remark,
        f"CartPole-v1: {EVALUATION}",
        "CartPole-v1: evaluation 1, at step 3, 2 episodes",
    ]
