"""Fragments that are too old."""

import itertools
import warnings

import pytest
from fleet_toys import LONG, VERSION, Held, InThread, Level, drawn, fleet, level, numbered

from swath.testing import Counting, Fault, Lives, Script, check_counted, check_lives

pytestmark = pytest.mark.usefixtures("nursery")


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


def test_stats_say_how_many_versions_behind_the_last_fragment_came():
    with fleet("async", numbered(1), Level(0), prefetch=1) as collector:
        collector.next()
        for number in (1, 2):
            collector.update_policy_weights_(level(number))
        collector.get_distant_attr("worker_idx")  # the second fragment was made before that
        assert collector.next()[VERSION].unique().tolist() == [0]
        assert (collector.stats()["staleness"], collector.stats("per_worker")["worker_0/staleness"]) == (2, 2)
        collector.next()
        assert collector.stats()["staleness"] == 0


def test_weights_that_are_meant_for_others_make_nothing_stale():
    with fleet("async", policy=Level(0), max_staleness=0, backend="inline") as collector:
        drawn(collector, 2)
        collector.update_policy_weights_(level(1), worker_ids=1)
        drawn(collector, 4)
        stats = collector.stats()
    assert stats["batches_dropped"] <= 1


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


def test_a_fragment_that_is_insisted_on_is_so_in_the_next_life_too(tmp_path):
    sources = Lives(tmp_path, {0: [[Fault("exit", step=8)], [Fault("exit", step=3)]]}, 2, LONG).sources(1)
    numbers = itertools.count()

    def publish():
        collector.update_policy_weights_(level(next(numbers) % 3))

    collector = fleet("async", sources, Level(0), max_staleness=0, prefetch=0, backend="inline")
    with collector:
        collector.pre_collect_hook = publish  # whatever is made is too old when it is there
        with pytest.warns(UserWarning, match="raise max_staleness") as caught:
            batches = drawn(collector, 5)
        stats = collector.stats()
    assert stats["restarts"] == 2
    assert (stats["batches_dropped"], stats["batches_overdue"]) == (5, 5)
    assert len(caught) == 1
    check_lives(batches, LONG, gaps=True)


def test_nothing_is_asked_for_anew_while_collection_is_held():
    with fleet("async", numbered(1), Level(0), max_staleness=0, prefetch=2, backend="inline") as collector:
        collection = collector._assembled.collection
        collector.next()
        collector.update_policy_weights_(level(1))
        collection.hold()
        assert collection.draw().ended
        assert not collection.in_flight
        collection.release()
        assert collector.next()[VERSION].unique().tolist() == [1]
        stats = collector.stats()
    assert (stats["batches_dropped"], stats["frames_dropped"]) == (2, 20)
