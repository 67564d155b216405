"""Ctrl-C may come at any moment of a draw: it leaves the draw, and the run goes on to its end."""

import pytest
from collector_toys import KINDS, LONG, fleet

from interrupts import interrupted_at
from swath.collectors import fragments, gather, service
from swath.group import group
from swath.testing import check_lives

OURS = {module.__file__ for module in (fragments, service, gather, group)}
STRIDE = 131


@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"trajs_per_batch": 1, "max_frames_per_traj": 3}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_anywhere_leaves_the_draw_and_the_run_reaches_its_end(kind, options):
    at, came = 7, True
    while came:
        at += STRIDE
        with fleet(kind, backend="inline", total_frames=60, **options) as collector:
            batch, came = interrupted_at(at, collector.next, OURS)
            batches = [*([] if came else [batch]), *collector]
            stats = collector.stats()
        frames = sum(batch.numel() for batch in batches)
        assert stats["frames"] >= 60, f"an interrupt at instruction {at} ended the run"
        on_its_way = stats["frames"] - frames  # it was counted, and lost between here and there
        assert on_its_way in (0, stats["requested_frames_per_batch"], 3) if came else on_its_way == 0
        check_lives(batches, LONG, gaps=True)
    assert at > 10 * STRIDE
