"""In which order workers are asked and served, and with which weights."""

import pytest
from fleet_toys import KINDS, LONG, VERSION, Held, InThread, Level, drawn, drawn_until, fleet, level, made_by, numbered

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


def test_of_several_that_are_ready_the_worker_served_longest_ago_comes_first():
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
    with fleet(kind, numbered(1), Level(0), frames_per_batch=10, prefetch=prefetch) as collector:
        collector.next()
        collector.update_policy_weights_(level(1))
        assert collector.next()[VERSION].unique().tolist() == [version]
        assert collector.next()[VERSION].unique().tolist() == [1]
