"""Totals of a collection."""

import numpy as np

from swath.group.group import Counters
from swath.rollout.episodes.statistics import EPISODE_DTYPE


def test_frames_that_are_restored_were_not_delivered_since_the_first_draw(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("swath.group.group.time.monotonic", lambda: now[0])
    counters = Counters()
    counters.start_clock()
    counters.deliver(30)
    counters.restore(1000, 50)
    now[0] += 2
    assert (counters.frames, counters.batches, counters.fps) == (1000, 50, 15)
    counters.deliver(10)
    assert counters.fps == 20


def test_a_part_of_a_batch_has_frames_alone_and_means_are_over_episodes():
    counters = Counters()
    counters.deliver(8)
    counters.deliver(2, batches=0)
    counters.episodes.add(np.array([(0, 3.0, 5), (1, 1.0, 1)], EPISODE_DTYPE))
    assert (counters.frames, counters.batches, counters.episodes.finished) == (10, 1, 2)
    assert counters.episodes.means == (2, 3)
