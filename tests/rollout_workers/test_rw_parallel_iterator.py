"""Items that are fetched one by one, in batches, or dealt to several callers."""

import itertools
import sys
from types import SimpleNamespace

import pytest

from swath.rollout_workers import ParallelIteratorWorker

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _rays_iterators_are_not_in_use(monkeypatch):
    monkeypatch.delitem(sys.modules, "ray.util.iter", raising=False)


def worker(items=(1, 2, 3, 4, 5), *transforms, repeat=False):
    made = ParallelIteratorWorker(items, repeat)
    made.par_iter_init(transforms)
    return made


def rest(worker):
    items = []
    try:
        while True:
            items.append(worker.par_iter_next())
    except StopIteration:
        return items


def failing_once(at):
    """A function that raises the first time it sees this item."""
    seen = []

    def check(item):
        seen.append(item)
        if item == at and seen.count(at) == 1:
            raise LookupError(item)
        return item

    return check


def test_items_come_in_order_and_the_end_is_stop_iteration_again_and_again():
    source = worker()
    assert rest(source) == [1, 2, 3, 4, 5]
    assert rest(source) == []


def test_before_init_the_call_says_what_is_missing():
    with pytest.raises(AssertionError, match="par_iter_init"):
        ParallelIteratorWorker([1], False).par_iter_slice(2, 0)


def test_a_new_pass_begins_anew_where_the_source_has_a_beginning():
    listed, made, running = worker([1, 2]), worker(lambda: (n for n in (1, 2))), worker(iter([1, 2]))
    for source in (listed, made, running):
        assert source.par_iter_next() == 1
        source.par_iter_init([])
    assert (rest(listed), rest(made), rest(running)) == ([1, 2], [1, 2], [2])


def test_repeated_items_come_without_end():
    source = worker(lambda: iter("ab"), repeat=True)
    assert [source.par_iter_next() for _ in range(5)] == list("ababa")
    assert (rest(worker([], repeat=True)), rest(worker(iter([1]), repeat=True))) == ([], [1])


TRANSFORMS = [
    ([lambda it: it.for_each(lambda n: n + 1), lambda it: it.filter(lambda n: n % 2 == 0)], [2, 4, 6]),
    ([lambda it: it.batch(2)], [[1, 2], [3, 4], [5]]),
    ([lambda it: it.batch(2).flatten()], [1, 2, 3, 4, 5]),
    ([lambda it: it.combine(lambda n: [n] * (n % 3))], [1, 2, 2, 4, 5, 5]),
]


@pytest.mark.parametrize(("transforms", "expected"), TRANSFORMS)
def test_transforms_are_applied_in_order(transforms, expected):
    assert rest(worker((1, 2, 3, 4, 5), *transforms)) == expected
    with pytest.raises(AssertionError, match="gave None"):
        worker([1], *transforms, lambda it: None)


@pytest.mark.parametrize("transform", [lambda it, check: it.for_each(check), lambda it, check: map(check, it)])
def test_a_transform_that_raises_loses_its_item_and_no_other(transform):
    check = failing_once(2)
    source = worker((1, 2, 3), lambda it: transform(it, check))
    assert source.par_iter_next() == 1
    with pytest.raises(LookupError):
        source.par_iter_next()
    assert rest(source) == [3]


def test_a_source_that_raises_goes_on():
    numbers, check = itertools.count(1), failing_once(2)
    source = worker(lambda: iter(lambda: check(next(numbers)), None))
    assert source.par_iter_next() == 1
    with pytest.raises(LookupError):
        source.par_iter_next()
    assert [source.par_iter_next(), source.par_iter_next()] == [3, 4]


def test_a_batch_is_one_item_or_what_the_time_is_enough_for():
    source = worker()
    assert source.par_iter_next_batch(0) == [1]
    assert source.par_iter_slice_batch(2, 0, 0) == [2]
    assert source.par_iter_next_batch(HOUR_MS) == [3, 4, 5]


def test_items_are_dealt_in_turn_whoever_asks_first():
    source = worker(range(6))
    assert [source.par_iter_slice(3, start) for start in (2, 0, 2, 1, 1, 0)] == [2, 0, 5, 1, 4, 3]


REFUSED = {
    "batch_ms=-1": lambda it: it.par_iter_next_batch(-1),
    "start=-1": lambda it: it.par_iter_slice(2, -1),
    "start=2": lambda it: it.par_iter_slice(2, 2),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_time_or_a_place_that_there_is_not_is_refused(what):
    with pytest.raises(ValueError, match=what):
        REFUSED[what](worker())


def test_rays_own_iterator_is_used_where_ray_is_using_it(monkeypatch):
    class Theirs:
        def __init__(self, base, metrics):
            self.base, self.metrics = base, metrics

        def doubled(self):
            return (2 * item for item in self.base(None))

    monkeypatch.setitem(sys.modules, "ray.util.iter", SimpleNamespace(LocalIterator=Theirs, SharedMetrics=object))
    assert rest(worker([1, 2], Theirs.doubled)) == [2, 4]
