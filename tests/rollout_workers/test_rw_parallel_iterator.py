"""Items that are fetched one by one, in batches, or dealt to several callers."""

import itertools
import sys

import pytest

from swath.rollout_workers import ParallelIteratorWorker

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _rays_iterators_are_not_in_use(monkeypatch):
    monkeypatch.delitem(sys.modules, "ray.util.iter", raising=False)


def worker(items=(1, 2, 3, 4, 5), *transforms, repeat=False):
    built = ParallelIteratorWorker(items, repeat)
    built.par_iter_init(transforms)
    return built


def rest(worker):
    items = []
    try:
        while True:
            items.append(worker.par_iter_next())
    except StopIteration:
        return items


def test_a_new_pass_starts_at_the_beginning_if_the_source_can():
    listed, generated, running = worker([1, 2]), worker(lambda: (n for n in (1, 2))), worker(iter([1, 2]))
    for source in (listed, generated, running):
        assert source.par_iter_next() == 1
        source.par_iter_init([])
    assert (rest(listed), rest(generated), rest(running)) == ([1, 2], [1, 2], [2])


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


@pytest.mark.parametrize("transform", [lambda it, check: it.for_each(check), lambda it, check: map(check, it), None])
def test_a_transform_or_source_that_raises_loses_its_item_and_no_other(transform):
    remaining, numbers = [2], itertools.count(1)

    def check(item):
        if item in remaining:
            raise LookupError(remaining.pop())
        return item

    if transform is None:
        source = worker(lambda: iter(lambda: check(next(numbers)), 4))
    else:
        source = worker((1, 2, 3), lambda it: transform(it, check))
    assert source.par_iter_next() == 1
    with pytest.raises(LookupError):
        source.par_iter_next()
    assert rest(source) == [3]
    assert rest(source) == [], "the end is the end again and again"


def test_items_repeat_come_in_batches_or_are_dealt_in_turn():
    source = worker(lambda: iter("ab"), repeat=True)
    assert [source.par_iter_next() for _ in range(5)] == list("ababa")
    assert (rest(worker([], repeat=True)), rest(worker(iter([1]), repeat=True))) == ([], [1])
    source = worker()
    assert source.par_iter_next_batch(0) == [1]
    assert source.par_iter_slice_batch(2, 0, 0) == [2]
    assert source.par_iter_next_batch(HOUR_MS) == [3, 4, 5]
    source = worker(range(6))
    assert [source.par_iter_slice(3, start) for start in (2, 0, 2, 1, 1, 0)] == [2, 0, 5, 1, 4, 3]
    for call, words in (
        (lambda: source.par_iter_next_batch(-1), "batch_ms=-1"),
        (lambda: source.par_iter_slice(2, -1), "start=-1"),
        (lambda: source.par_iter_slice(2, 2), "start=2"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(AssertionError, match="par_iter_init"):
        ParallelIteratorWorker([1], False).par_iter_slice(2, 0)
