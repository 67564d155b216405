import io

import pytest
from rich.console import Console
from seen_toys import ALONE, of_fleet, of_worker

from swath.report.picture import MOST_WORKERS
from swath.report.screens import LineScreen, PictureScreen, create_screen, seen_line
from swath.report.seen import Sight
from swath.report.status import EvalPoint

POINT = EvalPoint(512, 475.3, 451.2, 498, episodes=20)


def terminal(width=80, **settings):
    return Console(file=io.StringIO(), width=width, height=40, force_terminal=True, color_system=None, **settings)


def seen_of(facts, now=0.0):
    return Sight().look(facts, now)


def drawn(facts, point=None, width=80):
    """The picture of these facts."""
    console = terminal(width)
    screen = PictureScreen(console, "MultiSyncCollector")
    console.file = file = io.StringIO()
    screen.show(seen_of(facts), point)
    text = file.getvalue()
    screen.close(seen_of(facts), point)
    return text


@pytest.mark.parametrize("width", [80, 120, 60])
def test_the_picture_holds_every_fact_and_fits_the_terminal(width):
    facts = of_fleet(2, **of_worker(1, state="restarting", life=2, staleness=7), total_frames=400, restarts=2)
    text = drawn({**facts, "workers_alive": 1, "error": "ValueError: no"}, POINT, width)
    words = ["MultiSyncCollector", "1 of 2 workers, version 3", "25 %, 0:12 left", "100 of 400", "0 frames/s", "21.5"]
    words += ["length 33", "475.3 [451.2, 498]", "at step 512", "25 %", "of 0:04", "2 restarts", "ValueError: no"]
    for word in words:
        assert word in text
    rows = [line.split() for line in text.splitlines() if "restarting" in line]
    assert rows == [["1", "restarting", "2", "50", "0", "2", "7"]]
    assert max(len(line) for line in text.splitlines()) <= width + len("\x1b[2K\x1b[1A") * 14


def test_a_run_without_an_end_has_no_bar():
    assert "━" not in drawn(of_fleet())
    assert "━" in drawn(of_fleet(total_frames=400))


def test_a_collector_in_this_process_is_drawn_without_workers():
    text = drawn(ALONE)
    assert "life" not in text
    assert "workers" not in text


def test_of_many_workers_those_with_trouble_are_shown_and_the_others_counted():
    lost = MOST_WORKERS + 17
    text = drawn(of_fleet(MOST_WORKERS + 20, **of_worker(lost, state="gone")))
    assert [line.split()[:2] for line in text.splitlines() if "gone" in line] == [[str(lost), "gone"]]
    assert "and 20 more" in text


def test_a_pipe_gets_lines_and_a_terminal_a_picture():
    assert isinstance(create_screen(Console(file=io.StringIO()), "x"), LineScreen)
    assert isinstance(create_screen(terminal(_environ={"TERM": "dumb"}), "x"), LineScreen)
    screen = create_screen(terminal(_environ={"TERM": "xterm"}), "x")
    assert isinstance(screen, PictureScreen)
    screen.close(seen_of(ALONE), None)


def lines_of(*moments):
    """What is printed for a series of facts and evaluations."""
    file = io.StringIO()
    screen = LineScreen(Console(file=file, width=40), "C")
    for facts, point in moments:
        screen.show(seen_of(facts), point)
    screen.close(seen_of(moments[-1][0]), moments[-1][1])
    return file.getvalue().splitlines()


def test_a_line_says_everything():
    facts = of_fleet(2, total_frames=400, restarts=1)
    assert seen_line(seen_of(facts)) == (
        "100 of 400 frames, 0 frames/s, return 21.5, 2 of 2 workers, version 3, waiting 25 %, 1 behind, 1 restart, "
        "0:12 left"
    )
    assert seen_line(seen_of(ALONE)) == "100 frames, 0 frames/s, return -, version 3, waiting 25 %"
    assert seen_line(seen_of({**ALONE, "error": "OSError: x"})).endswith(", OSError: x")


def test_lines_come_every_twentieth_of_a_run():
    lines = lines_of(*(({**ALONE, "frames": frames, "total_frames": 1000}, None) for frames in range(0, 1001, 10)))
    assert [int(line.split()[1].replace(",", "")) for line in lines] == [*range(10, 1000, 50), 1000]


def test_a_run_without_an_end_prints_a_line_a_minute_and_one_at_the_end():
    lines = lines_of(*(({**ALONE, "frames": second, "seconds": float(second)}, None) for second in range(0, 150, 10)))
    assert [line.split()[1] for line in lines] == ["60", "120", "140"]


def test_the_last_line_is_not_printed_twice():
    assert len(lines_of(({**ALONE, "total_frames": 100}, None))) == 1


def test_an_evaluation_is_a_line_of_its_own_once():
    lines = lines_of((ALONE, POINT), (ALONE, POINT))
    assert lines[0] == "C: evaluation at step 512: 475.3 [451.2, 498], 20 episodes"
    assert len(lines) == 2
