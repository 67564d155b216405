"""Collectors that are shown while they work."""

import io
import threading

import pytest
from collector_toys import LONG, collector, drawn, fleet
from rich.console import Console

from swath import Progress
from swath.testing import CountingEnvs, Fault, Lives


def lines():
    """A view that prints lines, and what it has printed."""
    file = io.StringIO()
    return Progress(Console(file=file, width=200), every_s=0.01), lambda: file.getvalue().splitlines()


def views():
    return [thread for thread in threading.enumerate() if thread.name == "swath-progress"]


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("kind", [None, "sync", "async"])
def test_a_collector_is_shown_with_what_became_of_its_workers_until_it_is_shut_down(kind, tmp_path):
    view, printed = lines()
    if kind is None:
        made, wanted = collector(total_frames=200, progress=view), ["Collector: "]
    else:
        sources = [*Lives(tmp_path, {0: [[Fault("kill", step=7)]]}, 1, LONG).sources(1), CountingEnvs(LONG, first=1)]
        made = fleet(kind, sources, envs_per_worker=1, total_frames=200, progress=view)
        wanted = [" of 2 workers", "restarts 1, fragments lost 1"]
    with made:
        drawn(made, len(made))
        assert len(views()) == 1
        with pytest.raises(RuntimeError, match="watches another collector"):
            collector(progress=view)
    assert views() == []
    for part in (" 200 of 200 frames (100 %), ", *wanted):
        assert part in printed()[-1]
