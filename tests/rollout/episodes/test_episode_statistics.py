"""Means over the episodes that ended last."""

import numpy as np
import pytest

from swath.rollout.episodes.statistics import EPISODE, REMEMBERED, EpisodeLog


def test_means_are_over_the_last_hundred():
    log, totals = EpisodeLog(), []
    assert (log.finished, log.means) == (0, None)
    for n in (0, 3, 98, 250):
        more = list(range(len(totals), len(totals) + n))
        totals += more
        log.add(np.array([(0, total, total + 1) for total in more], EPISODE))
        last = totals[-REMEMBERED:]
        assert log.finished == len(totals)
        if last:
            assert log.means == pytest.approx((np.mean(last), np.mean(last) + 1))
