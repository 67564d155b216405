"""Items one after another, with what users hang behind them: mapped, sifted, gathered, spread.

source ─▶ for_each ─▶ filter ─▶ batch ─▶ …   nothing runs until the next item is asked for
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any


class LocalIterator:
    """Iterates over items; each method gives an iterator behind this one, with the names of Ray's own.

    Args:
        items: what is iterated over, once.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._items)

    def for_each(
        self,
        fn: Callable[[Any], Any],
        max_concurrency: int = 1,
        resources: Any = None,
    ) -> LocalIterator:
        """What the function makes of each item.

        Args:
            fn: called with an item.
            max_concurrency: only 1: items are worked on one after another, in the worker itself.
            resources: only None, likewise.

        Raises:
            ValueError: something else was asked for.
        """
        if max_concurrency != 1 or resources is not None:
            raise ValueError(
                f"max_concurrency={max_concurrency}, resources={resources!r}: functions run in the worker, one item at "
                "a time; leave both out, or use more workers"
            )
        return LocalIterator(map(fn, self))

    def filter(self, fn: Callable[[Any], bool]) -> LocalIterator:
        """The items of which the function is true."""
        return LocalIterator(filter(fn, self))

    def batch(self, n: int) -> LocalIterator:
        """Lists of `n` items, the last of what is left.

        Raises:
            ValueError: `n` is below 1.
        """
        if n < 1:
            raise ValueError(f"n={n} must be at least 1: it is the length of the lists")
        return LocalIterator(iter(lambda: list(islice(self, n)), []))

    def flatten(self) -> LocalIterator:
        """The items of the items."""
        return LocalIterator(chain.from_iterable(self))

    def combine(self, fn: Callable[[Any], Iterable[Any]]) -> LocalIterator:
        """The items of what the function makes of each item."""
        return self.for_each(fn).flatten()

    def transform(self, fn: Callable[[Iterable[Any]], Iterable[Any]]) -> LocalIterator:
        """What the function makes of all the items, as they come."""
        return LocalIterator(fn(self))


def local_iterator(items: Iterable[Any]) -> Any:
    """Ray's own iterator where that is in use in this process, as transforms made by it expect; else one of these."""
    theirs: Any = sys.modules.get("ray.util.iter")
    if theirs is None:
        return LocalIterator(items)
    return theirs.LocalIterator(lambda _timeout: items, theirs.SharedMetrics())
