"""Memory without a name that two processes see at once: written on one side, read on the other.

    Lender ─ write ─▶ Block ─ descriptor, at its first use ─▶ Borrower ─▶ views
      ▲                                                                    │
      └───────────────── taken back: the block is used again ◀─────────────┘

Nothing of it has a name in the file system: the memory goes with the last process that has it, however that one ends.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

_ALIGNMENT = 64
_PAGE = mmap.PAGESIZE
_SPARE_BLOCKS = 2


def new_memory(size: int) -> int:
    """The descriptor of that many zero bytes, closed on exec."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("swath", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="swath")
        os.unlink(path)  # noqa: PTH108  as near to mkstemp as can be
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def mapped(fd: int, size: int, *, writable: bool = True) -> Bytes:
    """The memory as bytes; it stays mapped while any view of them lives."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    if sys.version_info >= (3, 13):
        memory = mmap.mmap(fd, size, access=access, trackfd=False)
    else:
        memory = mmap.mmap(fd, size, access=access)
    return np.frombuffer(memory, dtype=np.uint8)


def extent(sizes: Sequence[int]) -> int:
    """Bytes that buffers of these sizes take, one after another."""
    return sum(map(_padded, sizes))


def offsets(sizes: Sequence[int]) -> list[int]:
    """Where buffers of these sizes begin, one after another."""
    return list(accumulate(map(_padded, sizes[:-1]), initial=0)) if sizes else []


def filled(view: Bytes, buffers: Sequence[memoryview]) -> None:
    """Write the buffers into the memory, one after another."""
    starts = offsets([buffer.nbytes for buffer in buffers])
    for start, buffer in zip(starts, buffers, strict=True):
        if buffer.nbytes:
            np.copyto(view[start : start + buffer.nbytes], np.frombuffer(buffer, dtype=np.uint8))


class Block:
    """Memory of a lender.

    Attributes:
        id: unique within its lender.
        fd: its descriptor.
        view: all of it.
        holders: how many still need what is in it.
    """

    def __init__(self, block_id: int, size: int) -> None:
        self.id = block_id
        self.holders = 0
        self.fd = new_memory(size)
        try:
            self.view = mapped(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise

    @property
    def size(self) -> int:
        """In bytes."""
        return self.view.nbytes

    def close(self) -> None:
        """Let go of it; the memory goes when the other side has let go too."""
        os.close(self.fd)
        self.view = np.empty(0, dtype=np.uint8)


class Lender:
    """Writes values into blocks and uses those again that nobody needs any more; one thread at a time.

    Attributes:
        returned: ids of blocks, each time a holder no longer needs one; any thread may append, also while garbage is
            collected.
    """

    def __init__(self) -> None:
        self.returned: deque[int] = deque()
        self._ids = count(1)
        self._blocks: dict[int, Block] = {}

    def write(self, buffers: Sequence[memoryview]) -> Block:
        """Write the buffers into a block, which has one holder then."""
        self._take_back()
        block = self._free_block(extent([buffer.nbytes for buffer in buffers]))
        block.holders = 1
        filled(block.view, buffers)
        return block

    def gone(self, known: set[int]) -> tuple[int, ...]:
        """Which of these ids are no blocks any more; they are removed from `known`."""
        gone = tuple(known - self._blocks.keys())
        known.difference_update(gone)
        return gone

    def close(self) -> None:
        """Let go of all blocks."""
        for block in self._blocks.values():
            block.close()
        self._blocks.clear()

    def _take_back(self) -> None:
        while self.returned:
            block = self._blocks.get(self.returned.popleft())
            if block is not None:
                block.holders -= 1
        spare = sorted((block for block in self._blocks.values() if not block.holders), key=lambda block: block.size)
        for block in spare[:-_SPARE_BLOCKS]:
            self._blocks.pop(block.id).close()

    def _free_block(self, size: int) -> Block:
        fitting = (block for block in self._blocks.values() if not block.holders and block.size >= size)
        found = min(fitting, key=lambda block: block.size, default=None)
        if found is None:
            found = Block(next(self._ids), max(_PAGE, -(-size // _PAGE) * _PAGE))
            self._blocks[found.id] = found
        return found


class Borrower:
    """The blocks of the other side as they are seen here.

    Args:
        writable: whether views may be written.
    """

    def __init__(self, *, writable: bool) -> None:
        self._writable = writable
        self._views: dict[int, Bytes] = {}

    def __getitem__(self, block_id: int) -> Bytes:
        return self._views[block_id]

    def learn(self, fresh: Iterable[tuple[int, int]], fds: Iterator[int]) -> None:
        """Map blocks (id, size) that are seen for the first time."""
        for block_id, size in fresh:
            fd = next(fds)
            try:
                self._views[block_id] = mapped(fd, size, writable=self._writable)
            finally:
                os.close(fd)

    def forget(self, gone: Iterable[int]) -> None:
        """Let go of blocks."""
        for block_id in gone:
            self._views.pop(block_id, None)

    def close(self) -> None:
        """Let go of all blocks; their memory goes with the last views of it."""
        self._views.clear()


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
