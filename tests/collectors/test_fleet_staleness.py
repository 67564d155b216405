"""Fragments that are too old."""

import warnings

import pytest
from fleet_toys import VERSION, Held, InThread, Level, fleet, level, numbered

from swath.testing import Counting, Script, check_counted

pytestmark = pytest.mark.usefixtures("fork_server")


def test_what_is_too_old_is_dropped_counted_and_asked_for_anew():
    with fleet("async", numbered(1), Level(0), max_staleness=1, prefetch=2) as collector:
        collector.next()
        for number in (1, 2):
            collector.update_policy_weights_(level(number))
        collector.get_distant_attr("worker_idx")
        batch = collector.next()
        stats = collector.stats()
    assert batch[VERSION].unique().tolist() == [2]
    assert (stats["batches_dropped"], stats["frames_dropped"], stats["frames"]) == (2, 20, 20)
    assert stats["batches_overdue"] == 0


def test_a_fragment_asked_for_after_a_drop_is_delivered_whatever_its_age(gate):
    sources = [lambda: Held(gate, at=11)]
    options = {"envs_per_worker": 1, "max_staleness": 0, "prefetch": 1, "frames_per_batch": 5}
    with fleet("async", sources, Level(0), **options) as collector:
        collector.next()
        collector.update_policy_weights_(level(1))  # the second fragment is too old by now
        drawing = InThread(collector.next)
        gate.await_arrival()  # the third is being made
        collector.update_policy_weights_(level(2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gate.open()
            batch = drawing.join().value
        stats = collector.stats()
    assert batch[VERSION].unique().tolist() == [1]
    assert (stats["batches_dropped"], stats["batches_overdue"], stats["frames"]) == (1, 1, 10)
    assert any("raise max_staleness" in str(one.message) for one in caught)


def test_random_batches_are_never_stale():
    with fleet("async", numbered(1), Level(2), max_staleness=0, init_random_frames=20, backend="inline") as collector:
        collector.next()
        collector.update_policy_weights_(level(1))
        collector.next()
        assert collector.stats()["batches_dropped"] == 0


def test_episodes_that_lost_a_stale_fragment_are_not_delivered_as_whole():
    counting = Counting(script=Script(lengths=(13,), endings=("terminated",)))
    options = {"max_staleness": 0, "trajs_per_batch": 1, "traj_format": "cat", "prefetch": 1, "backend": "inline"}
    with fleet("async", numbered(counting=counting), Level(0), **options) as collector:
        for number in range(12):
            batch = collector.next()
            assert batch.shape == (13,)
            check_counted(batch.unsqueeze(0), counting)
            collector.update_policy_weights_(level(number % 3))
        assert collector.stats()["batches_dropped"] > 0
        facts = collector.stats()
    assert facts["frames"] == 13 * 12
