"""Collectors that are shown while they work."""

import io
import threading

import pytest
from collector_toys import collector
from fleet_toys import LONG, drawn, fleet
from rich.console import Console

from swath import Progress
from swath.testing import CountingEnvs, Fault, Lives


def lines():
    """A view that prints lines, and what it has printed."""
    file = io.StringIO()
    return Progress(Console(file=file, width=200), every_s=0.01), lambda: file.getvalue().splitlines()


def views():
    return [thread for thread in threading.enumerate() if thread.name == "swath-progress"]


@pytest.fixture(autouse=True)
def no_view_is_left():
    yield
    assert views() == []


def test_a_collector_in_this_process_is_shown_until_it_is_shut_down():
    view, printed = lines()
    with collector(total_frames=40, progress=view) as made:
        assert len(list(made)) == 4
        assert len(views()) == 1
        made.shutdown()
        assert views() == []
    assert printed()[-1].startswith("Collector: 40 of 40 frames (100 %), ")


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_workers_are_shown_with_what_became_of_them(kind, tmp_path):
    sources = [*Lives(tmp_path, {0: [[Fault("kill", step=7)]]}, 1, LONG).sources(1), CountingEnvs(LONG, first=1)]
    view, printed = lines()
    with fleet(kind, sources, envs_per_worker=1, total_frames=200, progress=view) as made:
        drawn(made, len(made))
    for part in (" 200 of 200 frames (100 %), ", " of 2 workers", "restarts 1, fragments lost 1"):
        assert part in printed()[-1]


@pytest.mark.parametrize("make", [collector, fleet])
def test_what_is_no_view_is_refused_before_anything_is_built(make):
    with pytest.raises(TypeError, match=r"progress='yes' must be True, False or a swath\.Progress"):
        make(progress="yes")
    view, _ = lines()
    with collector(progress=view), pytest.raises(RuntimeError, match="watches another collector"):
        make(progress=view)
