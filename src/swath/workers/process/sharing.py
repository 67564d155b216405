"""Values that the driver puts once where all its process workers can read them.

driver: share(value) ─▶ ProcessShared ─ pickled as an argument of a call ─▶ Lent.open() : worker
                         block, one holder: itself; one more for each call in flight that names it
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from swath.workers.packing import unpack
from swath.workers.process.blocks import Block, Borrower, Bytes, Lender
from swath.workers.process.cargo import viewed
from swath.workers.process.messages import Cargo

here = Borrower(writable=False)  # in a worker: the blocks of its driver


class ProcessShared:
    """A value in a block of the driver.

    Args:
        cargo: where its arrays are.
        block: the block; `None` for a value that is small enough to travel along.
        lender: whose block it is.
    """

    def __init__(self, cargo: Cargo, block: Block | None, lender: Lender) -> None:
        self.block = block
        self._cargo = cargo
        self._lender = lender
        self._held = [True]

    def __reduce__(self) -> Any:
        named = getattr(_calling, "named", None)
        if named is None:
            raise TypeError("a shared value travels only as an argument of a call to a worker")
        if not self._held:
            raise ValueError("this shared value was released; share it anew")
        if self.block is not None:
            named[self.block.id] = self.block
        return Lent, (self._cargo,)

    def __del__(self) -> None:
        self.release()

    def open(self) -> Any:
        """The value; its arrays are views that must not be written."""
        return _viewed(self._cargo, None if self.block is None else self.block.view)

    def release(self) -> None:
        """No further call will name it."""
        try:
            self._held.pop()
        except IndexError:
            return
        if self.block is not None:
            self._lender.returned.append(self.block.id)


class ProcessWatched(ProcessShared):
    """Numbers in a block of the driver, who changes them while workers look."""

    def __init__(self, cargo: Cargo, block: Block, lender: Lender) -> None:
        super().__init__(cargo, block, lender)
        self.values = viewed(cargo, block.view)


class Lent:
    """The same value in a worker; good while it answers the call that brought it."""

    def __init__(self, cargo: Cargo) -> None:
        self._cargo = cargo

    def open(self) -> Any:
        """The value; its arrays are views that must not be written."""
        return _viewed(self._cargo, here[self._cargo.block] if self._cargo.block else None)

    def release(self) -> None:
        """The driver does that."""


@contextmanager
def naming() -> Iterator[dict[int, Block]]:
    """Collects the blocks of shared values that are pickled in this thread."""
    named: dict[int, Block] = {}
    _calling.named = named
    try:
        yield named
    finally:
        _calling.named = None


def _viewed(cargo: Cargo, view: Bytes | None) -> Any:
    if view is None:
        return unpack(cargo.head, [memoryview(buffer).toreadonly() for buffer in cargo.inline])
    view = view[:]
    view.flags.writeable = False
    return viewed(cargo, view)


_calling = threading.local()
