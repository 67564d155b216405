import io
from dataclasses import replace

from display_toys import LOSSES, POINT, seen_of
from rich.console import Console
from seen_toys import ALONE, of_fleet

from swath.report.display import Title
from swath.report.line_display import LineDisplay, seen_line


def opened(*details):
    """A display, and the lines that it has printed."""
    file = io.StringIO()
    return LineDisplay(Console(file=file, width=40), Title("C", details)), lambda: file.getvalue().splitlines()


def frames_of(lines):
    return [int(line.split()[1].replace(",", "")) for line in lines]


def shown(*moments):
    """The lines of a run with these facts, to its end."""
    display, lines = opened()
    for facts in moments:
        display.show(seen_of(facts))
    display.close()
    return lines()


def test_a_line_says_everything():
    facts = of_fleet(2, total_frames=400, restarts=1)
    assert seen_line(replace(seen_of(facts), losses=LOSSES)) == (
        "100 of 400 frames (25 %), 0 frames/s, return 21.5, length 33, policy -0.0123, value 12.3, waiting 25 %, "
        "version 3, 2 of 2 workers, 1 behind, 1 restart, 0:12 left"
    )
    assert seen_line(seen_of(ALONE)) == "100 frames, 0 frames/s, return -, length -, waiting 25 %, version 3"
    assert seen_line(seen_of({**ALONE, "error": "OSError: x"})).endswith(", OSError: x")


def test_the_first_line_says_what_it_is_about_if_there_is_something_to_say():
    assert opened("PPO", "8 envs")[1]() == ["C: PPO, 8 envs"]
    assert opened()[1]() == []


def test_lines_come_every_twentieth_of_a_run_and_at_its_end():
    lines = shown(*({**ALONE, "frames": frames, "total_frames": 1000} for frames in range(1001)))
    assert frames_of(lines) == [*range(1, 1000, 50), 1000]


def test_a_slow_run_still_prints_a_line_a_minute():
    moments = ({**ALONE, "frames": n, "total_frames": 1000, "seconds": 20.0 * n} for n in range(1, 10))
    assert frames_of(shown(*moments)) == [1, 4, 7, 9]


def test_a_run_without_an_end_prints_a_line_a_minute_and_one_at_the_end():
    lines = shown(*({**ALONE, "frames": second, "seconds": float(second)} for second in range(0, 150, 10)))
    assert frames_of(lines) == [60, 120, 140]


def test_the_last_line_is_not_printed_twice_however_long_the_end_takes():
    done = {**ALONE, "total_frames": 100}
    assert len(shown(done, {**done, "seconds": 5.0, "fps": 20.0})) == 1


def test_what_has_happened_since_the_last_line_is_told_at_the_end():
    done = {**ALONE, "total_frames": 100}
    assert [line.endswith("1 worker lost, 0:00 left") for line in shown(done, {**done, "workers_lost": 1})] == [
        False,
        True,
    ]


def test_a_run_that_was_never_shown_leaves_no_line():
    display, lines = opened()
    display.close()
    assert lines() == []


def test_an_evaluation_is_a_line_of_its_own():
    display, lines = opened()
    display.evaluated(POINT)
    assert lines() == ["C: evaluation 475.3 [451.2, 498], at step 512, 20 episodes"]


def test_lines_are_for_results_and_remarks_only():
    display, lines = opened()
    display.doing("evaluating")
    display.say("a remark that is longer than the console is wide")
    assert lines() == ["a remark that is longer than the console is wide"]
