"""The base of workers that serve items to callers, as `ray.util.iter.from_actors` needs them.

item_generator ─▶ transforms ─▶ par_iter_next | par_iter_next_batch
                        └─▶ dealt to callers in turn ─▶ par_iter_slice | par_iter_slice_batch
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any

# An iterable, or a function that makes one.
Source = Iterable[Any] | Callable[[], Iterable[Any]]


class LocalIterator(Iterator[Any]):
    """Iterates over items; each method returns an iterator over the results, with the method names of Ray.

    Args:
        items: iterated over once.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)

    def __next__(self) -> Any:
        return next(self._items)

    def for_each(self, fn: Callable[[Any], Any]) -> LocalIterator:
        """Apply a function to each item."""
        return LocalIterator(map(fn, self))

    def filter(self, fn: Callable[[Any], bool]) -> LocalIterator:
        """Keep the items for which the function is true."""
        return LocalIterator(filter(fn, self))

    def batch(self, n: int) -> LocalIterator:
        """Group items in lists of `n`, the last one shorter."""
        return LocalIterator(iter(lambda: list(islice(self, n)), []))

    def flatten(self) -> LocalIterator:
        """Iterate over the items of the items."""
        return LocalIterator(chain.from_iterable(self))

    def combine(self, fn: Callable[[Any], Iterable[Any]]) -> LocalIterator:
        """Iterate over the items of the function's results."""
        return self.for_each(fn).flatten()


class ParallelIteratorWorker:
    """Serves items to several callers, after transforms.

    What a transform or the source raises is raised by the call; the next call continues after that item.

    Args:
        item_generator: an iterable, or a function that makes one.
        repeat: start again at the end, for ever, unless there was no item.
    """

    def __init__(self, item_generator: Source, repeat: bool) -> None:
        self._par_iter_items, self._par_iter_repeat = item_generator, repeat
        self._par_iter_chain: Iterator[Any] | None = None
        self._par_iter_slices: defaultdict[int, deque[Any]] = defaultdict(deque)

    def par_iter_init(self, transforms: Iterable[Callable[[Any], Any]]) -> None:
        """Start to iterate, from the beginning if the source allows it.

        Args:
            transforms: `f(iterator) -> iterator`, applied in order.

        Raises:
            AssertionError: a transform gave None.
        """
        self._par_iter_transforms, self._par_iter_turn = list(transforms), 0
        self._par_iter_slices.clear()
        iterate = _iterate_repeatedly if self._par_iter_repeat else _iterate_once
        self._par_iter_source = iterate(self._par_iter_items)
        self._par_iter_link()

    def par_iter_next(self) -> Any:
        """Return the next item.

        Raises:
            AssertionError: `par_iter_init` was not called before.
            StopIteration: there is none.
        """
        assert self._par_iter_chain is not None, "call par_iter_init(transforms) first"
        try:
            return next(self._par_iter_chain)
        except StopIteration:
            raise
        except BaseException:
            self._par_iter_link()  # a generator that has raised is over
            raise

    def par_iter_next_batch(self, batch_ms: float) -> list[Any]:
        """Return the items of so many milliseconds, at least one; for 0 milliseconds exactly one.

        Raises:
            ValueError: the time is negative.
            StopIteration: there is none.
        """
        return _take_for(self.par_iter_next, batch_ms)

    def par_iter_slice(self, step: int, start: int) -> Any:
        """Return the next of every `step` items, which are dealt in turn from 0; the others wait for their callers.

        Raises:
            ValueError: `start` is not in [0, step).
            StopIteration: there is none for this place.
        """
        if not 0 <= start < step:
            raise ValueError(f"start={start} must be at least 0 and below step={step}")
        items = self._par_iter_slices[start]
        while not items:
            item = self.par_iter_next()
            self._par_iter_slices[self._par_iter_turn].append(item)
            self._par_iter_turn = (self._par_iter_turn + 1) % step
        return items.popleft()

    def par_iter_slice_batch(self, step: int, start: int, batch_ms: float) -> list[Any]:
        """Return several items of `par_iter_slice`; see `par_iter_next_batch` for how many."""
        return _take_for(lambda: self.par_iter_slice(step, start), batch_ms)

    def _par_iter_link(self) -> None:
        """Chain the transforms after the source."""
        # Ray's own iterator where that is in use in this process, as transforms made by it expect
        rays: Any = sys.modules.get("ray.util.iter")
        source = self._par_iter_source
        linked = LocalIterator(source) if rays is None else rays.LocalIterator(lambda _: source, rays.SharedMetrics())
        for transform in self._par_iter_transforms:
            linked = transform(linked)
            assert linked is not None, f"{transform!r} gave None; it must give an iterator"
        self._par_iter_chain = iter(linked)


def _iterate_once(source: Source) -> Iterator[Any]:
    return iter(source() if callable(source) else source)


def _iterate_repeatedly(source: Source) -> Iterator[Any]:
    is_empty = False
    while not is_empty:
        is_empty = True
        for item in _iterate_once(source):
            is_empty = False
            yield item


def _take_for(next_item: Callable[[], Any], batch_ms: float) -> list[Any]:
    if batch_ms < 0:
        raise ValueError(f"batch_ms={batch_ms} must be 0 or more")
    deadline = time.monotonic() + batch_ms / 1000
    items = [next_item()]
    with suppress(StopIteration):
        while time.monotonic() < deadline:
            items.append(next_item())
    return items
