"""In which order workers are asked and served, with which weights, and what is too old; the random beginning."""

import warnings

import pytest
from collector_toys import (
    KINDS,
    LONG,
    PLACES,
    VERSION,
    Always,
    Held,
    InThread,
    drawn,
    drawn_until,
    fleet,
    made_by,
    numbered,
    weights,
)

from swath.testing import CountingEnvs, check_lives

pytestmark = pytest.mark.usefixtures("fork_server")


@pytest.mark.parametrize("place", ["thread", "process"])
def test_rows_are_workers_whatever_the_order_of_arrival(place, gate):
    sources = [lambda: Held(gate, at=3), CountingEnvs(LONG, first=1)]
    with fleet(sources=sources, envs_per_worker=1, backend=place) as collector:
        drawing = InThread(collector.next)
        gate.await_arrival()
        gate.open()
        assert made_by(drawing.join().value) == [0, 1]


def test_the_first_that_is_ready_is_served_first(gate):
    sources = [lambda: Held(gate, at=3), CountingEnvs(LONG, first=1)]
    with fleet("async", sources, envs_per_worker=1) as collector:
        batches = drawn(collector, 3)
        gate.await_arrival()
        gate.open()
        batches += drawn_until(collector, lambda batch: made_by(batch) == [0])
    assert [made_by(batch) for batch in batches[:3]] == [[1]] * 3
    check_lives(batches, LONG)


def test_among_ready_workers_the_one_served_longest_ago_comes_first():
    with fleet("async", numbered(3), prefetch=2) as collector:
        drawn(collector, 1)
        order = []
        for _ in range(12):
            collector.get_distant_attr("worker_idx")  # all that was asked for is there now
            order += made_by(collector.next())[:1]
    assert all(sorted(order[i : i + 3]) == [0, 1, 2] for i in range(len(order) - 2))


@pytest.mark.parametrize(("prefetch", "version"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_moment_when_a_worker_is_asked(kind, prefetch, version):
    with fleet(kind, numbered(1), Always(0), frames_per_batch=10, prefetch=prefetch) as collector:
        collector.next()
        collector.update_policy_weights_(weights(1))
        assert collector.next()[VERSION].unique().tolist() == [version]
        assert collector.next()[VERSION].unique().tolist() == [1]


# ---- the random beginning


def is_random(batch):
    """Return whether some actions are not `Always(2)`'s."""
    return batch["action"].unique().tolist() != [2]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_exactly_the_first_batches_asked_for_are_random(kind, place):
    with fleet(kind, policy=Always(2), init_random_frames=50, prefetch=1, backend=place, total_frames=120) as collector:
        batches = list(collector)
    frames = batches[0].numel()
    assert sum(map(is_random, batches)) == -(-50 // frames)
    if kind == "sync":
        assert list(map(is_random, batches)) == [True] * 3 + [False] * 3


# ---- fragments that are too old


def test_a_stale_fragment_is_dropped_counted_and_requested_again():
    with fleet("async", numbered(1), Always(0), max_staleness=1, prefetch=2) as collector:
        collector.next()
        for number in (1, 2):
            collector.update_policy_weights_(weights(number))
        collector.get_distant_attr("worker_idx")
        batch = collector.next()
        stats = collector.stats()
    assert batch[VERSION].unique().tolist() == [2]
    assert (stats["batches_dropped"], stats["frames_dropped"], stats["frames"]) == (2, 20, 20)
    assert stats["batches_overdue"] == 0


def test_a_fragment_asked_for_after_a_drop_is_delivered_whatever_its_age(gate):
    sources = [lambda: Held(gate, at=11)]
    options = {"envs_per_worker": 1, "max_staleness": 0, "prefetch": 1, "frames_per_batch": 5}
    with fleet("async", sources, Always(0), **options) as collector:
        collector.next()
        collector.update_policy_weights_(weights(1))  # the second fragment is too old by now
        drawing = InThread(collector.next)
        gate.await_arrival()  # the third is being made
        collector.update_policy_weights_(weights(2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gate.open()
            batch = drawing.join().value
        stats = collector.stats()
    assert batch[VERSION].unique().tolist() == [1]
    assert (stats["batches_dropped"], stats["batches_overdue"], stats["frames"]) == (1, 1, 10)
    assert any("raise max_staleness" in str(warning.message) for warning in caught)


def test_random_batches_are_never_stale():
    with fleet("async", numbered(1), Always(2), max_staleness=0, init_random_frames=20, backend="inline") as collector:
        collector.next()
        collector.update_policy_weights_(weights(1))
        collector.next()
        assert collector.stats()["batches_dropped"] == 0
