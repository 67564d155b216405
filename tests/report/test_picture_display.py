import io
import math
from dataclasses import replace

import pytest
from display_toys import LOSSES, POINT, seen_of, terminal
from seen_toys import ALONE, of_fleet, of_worker

from swath.report.display import Title
from swath.report.picture import MOST_WORKERS, progress_words
from swath.report.picture_display import PictureDisplay

HINT = "Ctrl-C stops"
TITLE = Title("CartPole-v1", ("PPO", "2 workers", "seed 0"), HINT)


@pytest.fixture
def opened():
    """Makes displays that are closed at the end, and gives what they have drawn since it was asked last."""
    made = []

    def make(width=80, title=TITLE, height=40):
        console = terminal(width, height=height)
        made.append(PictureDisplay(console, title))

        def drawn():
            file, console.file = console.file, io.StringIO()
            return file.getvalue()

        drawn()
        return made[-1], drawn

    yield make
    for display in made:
        display.close()


def drawn_of(opened, facts, width=80, **more):
    display, drawn = opened(width)
    display.show(replace(seen_of(facts), **more))
    return drawn()


@pytest.mark.parametrize("width", [80, 120, 60])
def test_the_picture_holds_every_fact_and_fits_the_terminal(opened, width):
    facts = of_fleet(2, **of_worker(1, state="restarting", life=2, staleness=7), total_frames=400, restarts=2)
    display, drawn = opened(width)
    for worth in range(20):
        display.show(replace(seen_of(facts), episode_return=float(worth)))
    display.evaluated(POINT)
    drawn()
    display.show(replace(seen_of({**facts, "workers_alive": 1, "error": "ValueError: no"}), losses=LOSSES))
    text = drawn()
    words = ["CartPole-v1", "seed 0", "25 %, 0:12 left", "100 of 400", "0 frames/s", "21.5", "length 33", "▁"]
    words += ["475.3 [451.2, 498]", "at step 512", "policy\N{NO-BREAK SPACE}-0.0123", "25 %", "of 0:04"]
    words += ["version 3, 1 behind", "1 of 2 workers", "2 restarts", "ValueError: no", HINT]
    for word in words:
        assert word in text
    rows = [line.split() for line in text.splitlines() if "restarting" in line]
    assert rows == [["1", "restarting", "2", "50", "0", "2", "7"]]
    assert max(len(line) for line in text.splitlines()) <= width + len("\x1b[2K\x1b[1A") * 20


def test_a_run_without_an_end_has_no_bar(opened):
    assert "━" not in drawn_of(opened, of_fleet())
    assert "━" in drawn_of(opened, of_fleet(total_frames=400))


def test_a_collector_in_this_process_is_drawn_without_workers(opened):
    text = drawn_of(opened, ALONE)
    assert "life" not in text
    assert "of 2 workers" not in text
    assert "behind" not in text


def test_of_many_workers_those_with_trouble_are_shown_and_the_others_counted(opened):
    lost = MOST_WORKERS + 17
    text = drawn_of(opened, of_fleet(MOST_WORKERS + 20, **of_worker(lost, state="gone")))
    assert [line.split()[:2] for line in text.splitlines() if "gone" in line] == [[str(lost), "gone"]]
    assert "and 20 more" in text


@pytest.mark.parametrize("height", [24, 30, 100])
def test_a_low_terminal_has_room_for_fewer_workers_and_all_that_stands_around_them(opened, height):
    display, drawn = opened(height=height)
    display.evaluated(POINT)
    drawn()
    facts = of_fleet(20, **of_worker(19, state="gone"), total_frames=400, restarts=1)
    display.show(replace(seen_of(facts), losses=LOSSES))
    lines = drawn().split("\n")
    assert len(lines) < height
    assert [word in "\n".join(lines) for word in ("CartPole-v1", "gone", HINT)] == [True] * 3
    shown = sum(line.split()[1:2] in (["up"], ["gone"]) for line in lines)
    assert shown == min(height - 18, MOST_WORKERS)
    assert f"and {20 - shown} more" in "\n".join(lines)


def test_the_last_line_says_what_goes_on_and_is_gone_at_the_end(opened):
    display, drawn = opened()
    display.doing("evaluating, 20 episodes")
    assert "evaluating, 20 episodes" in drawn()
    display.doing("")
    assert HINT in drawn()
    display.show(seen_of({**ALONE, "total_frames": 100}))
    drawn()
    display.close()
    display.close()
    last = drawn()
    assert HINT not in last
    assert "done" in last


def test_a_remark_is_printed_as_it_is(opened):
    display, drawn = opened()
    display.say('left out: pip install "swath[video]"')
    assert 'left out: pip install "swath[video]"' in drawn()


@pytest.mark.parametrize(
    ("share", "left", "words"), [(0.0, math.inf, "0 %"), (0.5, 61.0, "50 %, 1:01 left"), (1.0, 0.0, "done")]
)
def test_progress_is_said_in_words(share, left, words):
    assert progress_words(share, left) == words
