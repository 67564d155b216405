"""Sums of running episodes step by step, and means over those that ended."""

import numpy as np
import pytest

from swath.rollout.episodes.statistics import EPISODE, REMEMBERED, EpisodeLog, EpisodeSums


def test_rows_that_are_no_transitions_do_not_count_and_episodes_begin_at_zero():
    sums = EpisodeSums(3)
    sums.count_step(np.array([1.0, 2.0, 3.0]))
    sums.begin([1])
    sums.count_step(np.array([np.nan, 20.0, 30.0]), void=[0])
    assert (sums.returns.tolist(), sums.lengths.tolist()) == ([1, 20, 33], [1, 1, 2])


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
