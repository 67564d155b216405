"""Base of workers whose items are fetched by others, as `ray.util.iter.from_actors` does.

item_generator ─▶ source ─▶ transforms ─▶ par_iter_next | par_iter_next_batch
                                 └─▶ dealt to callers in turn ─▶ par_iter_slice | par_iter_slice_batch
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from swath.rollout_workers.local_iterator import local_iterator

Transform = Callable[[Any], Any]
"""`f(it) -> it`"""


class ParallelIteratorWorker:
    """Gives its items to whoever asks, after what transforms make of them.

    What a transform or the source raises is raised by the call; the next one goes on behind that item.

    Args:
        item_generator: an iterable, or a function that makes one.
        repeat: begin anew at the end, without end.
    """

    def __init__(self, item_generator: Iterable[Any] | Callable[[], Iterable[Any]], repeat: bool) -> None:
        self._par_iter_source = _Source(item_generator, repeat=repeat)
        self._par_iter_transforms: list[Transform] | None = None
        self._par_iter_chain: Iterator[Any] | None = None
        self._par_iter_slices: defaultdict[int, deque[Any]] = defaultdict(deque)
        self._par_iter_turn = 0

    def par_iter_init(self, transforms: Iterable[Transform]) -> None:
        """Begin to iterate, from the beginning where the source has one.

        Args:
            transforms: applied in order.

        Raises:
            AssertionError: a transform gave None.
        """
        self._par_iter_transforms = list(transforms)
        self._par_iter_slices.clear()
        self._par_iter_turn = 0
        self._par_iter_source.begin()
        self._par_iter_chain = self._par_iter_link()

    def par_iter_next(self) -> Any:
        """The next item.

        Raises:
            AssertionError: `par_iter_init` was not called before.
            StopIteration: there is none.
        """
        if self._par_iter_chain is None:
            assert self._par_iter_transforms is not None, "call par_iter_init(transforms) first"
            self._par_iter_chain = self._par_iter_link()
        try:
            return next(self._par_iter_chain)
        except StopIteration:
            raise
        except BaseException:
            self._par_iter_chain = None  # what has raised, a generator for instance, may be over
            raise

    def par_iter_next_batch(self, batch_ms: float) -> list[Any]:
        """Several items: those that come in so many milliseconds, at least one; of 0 milliseconds one.

        Raises:
            ValueError: the time is negative.
            StopIteration: there is none.
        """
        return _gathered(self.par_iter_next, batch_ms)

    def par_iter_slice(self, step: int, start: int) -> Any:
        """The next of every `step` items that are dealt in turn, the first to 0; the others' wait until they ask.

        Raises:
            ValueError: `start` is not in [0, step).
            StopIteration: there is none for this place.
        """
        if not 0 <= start < step:
            raise ValueError(f"start={start} must be at least 0 and below step={step}")
        mine = self._par_iter_slices[start]
        while not mine:
            self._par_iter_slices[self._par_iter_turn].append(self.par_iter_next())
            self._par_iter_turn = (self._par_iter_turn + 1) % step
        return mine.popleft()

    def par_iter_slice_batch(self, step: int, start: int, batch_ms: float) -> list[Any]:
        """Several items of `par_iter_slice`; see `par_iter_next_batch` for how many."""
        return _gathered(lambda: self.par_iter_slice(step, start), batch_ms)

    def _par_iter_link(self) -> Iterator[Any]:
        linked = local_iterator(self._par_iter_source)
        for transform in self._par_iter_transforms or ():
            linked = transform(linked)
            assert linked is not None, f"{transform!r} gave None; it must give an iterator"
        return iter(linked)


class _Source:
    """Items without transforms; goes on when making one has failed.

    Args:
        given: an iterable, or a function that makes one.
        repeat: begin anew at the end.
    """

    def __init__(self, given: Iterable[Any] | Callable[[], Iterable[Any]], *, repeat: bool) -> None:
        self._given = given
        self._repeat = repeat
        self._items: Iterator[Any] | None = None

    def begin(self) -> None:
        """From the beginning, if it has one: an iterator goes on where it is."""
        self._items = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._begun())
        except StopIteration:
            if not self._repeat:
                raise
        except BaseException:
            if callable(self._given):
                self._items = None  # a generator that has raised is over
            raise
        self._items = None
        return next(self._begun())

    def _begun(self) -> Iterator[Any]:
        if self._items is None:
            made = self._given() if callable(self._given) else self._given
            self._items = iter(made)
            if self._repeat and self._items is made and not callable(self._given):
                raise ValueError(f"{made!r} is an iterator, which cannot be repeated; give a function that makes it")
        return self._items


def _gathered(next_item: Callable[[], Any], batch_ms: float) -> list[Any]:
    if batch_ms < 0:
        raise ValueError(f"batch_ms={batch_ms} must be 0 or more: it is the time to gather items, in milliseconds")
    until = time.monotonic() + batch_ms / 1000
    items = [next_item()]
    try:
        while time.monotonic() < until:
            items.append(next_item())
    except StopIteration:
        pass
    return items
