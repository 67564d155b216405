"""Filters of several workers: each observation is counted once, wherever it was made and whenever it was told."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.rollout_workers import FilterManager, MeanStdFilter, NoFilter
from swath.rollout_workers.filters import copies_of, rebase_all


class Worker:
    """Has filters, and counts by hand what they were shown."""

    def __init__(self):
        self.filters = {"a": MeanStdFilter((2,), clip=None), "b": NoFilter()}

    def see(self, values):
        self.filters["a"](values)

    def get_filters(self, flush_after=False):
        return copies_of(self.filters, flush_after=flush_after)

    def sync_filters(self, new_filters):
        rebase_all(self.filters, new_filters)


class Set:
    """Workers that are asked one after the other; what they are told and say crosses a border."""

    def __init__(self, n, between=lambda: None):
        self.workers = [Worker() for _ in range(n)]
        self.asked = []
        self.between = between

    def collect_filters(self, timeout_seconds):
        self.asked.append(timeout_seconds)
        answers = [pickle.loads(pickle.dumps(worker.get_filters(flush_after=True))) for worker in self.workers]
        self.between()
        return answers, []

    def send_filters(self, filters, timeout_seconds):
        self.asked.append(timeout_seconds)
        for worker in self.workers:
            worker.sync_filters(pickle.loads(pickle.dumps(filters)))


def drawn(n, seed):
    return np.random.default_rng(seed).normal(seed, 1 + seed, (n, 2))


def one_that_saw(*batches):
    filt = MeanStdFilter((2,), clip=None)
    for batch in batches:
        filt(batch)
    return filt


def assert_equal_statistics(filt, other):
    assert filt.rs.n == other.rs.n
    np.testing.assert_allclose(filt.rs.mean, other.rs.mean, rtol=1e-6)
    np.testing.assert_allclose(filt.rs.std, other.rs.std, rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=4))
def test_after_each_round_all_equal_one_filter_that_saw_everything_once(rounds):
    workers, local, everything = Set(3), Worker(), []
    for number, sizes in enumerate(rounds):
        for i, worker in enumerate((*workers.workers[:2], local)):
            values = drawn(sizes[i], seed=number * 3 + i)
            everything.append(values)
            worker.see(values)
        FilterManager.synchronize(local.filters, workers)
        expected = one_that_saw(*everything)
        for worker in (*workers.workers, local):
            assert_equal_statistics(worker.filters["a"], expected)
        assert [worker.filters["a"].buffer.n for worker in workers.workers] == [0, 0, 0]


def test_what_is_seen_between_asking_and_telling_counts_for_its_worker_at_once_and_for_all_next_time():
    early, meanwhile = drawn(5, 1), drawn(4, 2)
    workers, local = Set(2), Worker()
    workers.workers[0].see(early)
    unseen = [meanwhile]
    workers.between = lambda: workers.workers[0].see(unseen.pop()) if unseen else None
    FilterManager.synchronize(local.filters, workers)
    assert_equal_statistics(local.filters["a"], one_that_saw(early))
    assert_equal_statistics(workers.workers[1].filters["a"], one_that_saw(early))
    assert_equal_statistics(workers.workers[0].filters["a"], one_that_saw(early, meanwhile))
    assert workers.workers[0].filters["a"].buffer.n == 4
    FilterManager.synchronize(local.filters, workers)
    for worker in (*workers.workers, local):
        assert_equal_statistics(worker.filters["a"], one_that_saw(early, meanwhile))


SETTINGS = [
    # update_remote, use_remote_data: rounds, local n, remote n, remote buffer
    (True, False, 2, 3, 3, 0),
    (False, True, 1, 7, 4, 0),
    (False, False, 0, 3, 4, 4),
]


@pytest.mark.parametrize(("update_remote", "use", "rounds", "local_n", "remote_n", "buffered"), SETTINGS)
def test_each_direction_can_be_left_out(update_remote, use, rounds, local_n, remote_n, buffered):
    workers, local = Set(1), Worker()
    workers.workers[0].see(drawn(4, 1))
    local.see(drawn(3, 2))
    FilterManager.synchronize(local.filters, workers, update_remote, 7.0, use)
    remote = workers.workers[0].filters["a"]
    assert workers.asked == [7.0] * rounds
    assert (local.filters["a"].rs.n, remote.rs.n, remote.buffer.n) == (local_n, remote_n, buffered)


@pytest.mark.parametrize("flush", [True, False])
def test_filters_are_copied_before_their_buffers_are_emptied_and_statistics_stay(flush):
    worker = Worker()
    worker.see(drawn(3, 1))
    copies, own = worker.get_filters(flush_after=flush), worker.filters["a"]
    worker.see(drawn(2, 2))
    assert (copies["a"].rs.n, copies["a"].buffer.n) == (3, 3)
    assert (own.rs.n, own.buffer.n) == (5, 2 if flush else 5)


def test_new_statistics_are_taken_the_own_buffer_is_merged_and_stays_and_the_new_ones_buffer_is_not_used():
    worker, new = Worker(), Worker()
    worker.see(drawn(3, 1))
    new.see(drawn(5, 2))
    worker.sync_filters(new.filters)
    assert_equal_statistics(worker.filters["a"], one_that_saw(drawn(5, 2), drawn(3, 1)))
    assert (worker.filters["a"].buffer.n, new.filters["a"].buffer.n, new.filters["a"].rs.n) == (3, 5, 5)
