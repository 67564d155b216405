"""What a worker keeps to tell of its episodes."""

import warnings

import pytest

from swath.rollout_workers import RolloutMetrics
from swath.rollout_workers.metrics_log import CAPACITY, MetricsLog


def episodes(*lengths):
    return [RolloutMetrics(length) for length in lengths]


def lengths(told):
    return [one.episode_length for one in told]


def test_what_is_told_is_forgotten():
    log = MetricsLog()
    log.add(episodes(1, 2))
    log.add(episodes(3))
    assert lengths(log.drain()) == [1, 2, 3]
    assert log.drain() == []
    assert log.dropped == 0


@pytest.mark.parametrize("added", [[(1, 2, 3, 4, 5)], [(1, 2, 3), (4, 5)], [(1,), (2,), (3,), (4,), (5,)]], ids=str)
def test_the_oldest_are_dropped_counted_and_warned_of_once(added):
    log = MetricsLog(capacity=3)

    def add_all():
        for some in added:
            log.add(episodes(*some))

    with pytest.warns(UserWarning, match=r"metrics of 3 episodes were not asked for.*get_metrics\(\)") as caught:
        add_all()
    assert (len(caught), log.dropped) == (1, 2)
    assert lengths(log.drain()) == [3, 4, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log.add(episodes(1, 2, 3, 4))
    assert (log.dropped, lengths(log.drain())) == (3, [2, 3, 4])


def test_ten_thousand_are_kept():
    log = MetricsLog()
    log.add(episodes(*range(CAPACITY)))
    assert (CAPACITY, log.dropped, len(log.drain())) == (10_000, 0, 10_000)
