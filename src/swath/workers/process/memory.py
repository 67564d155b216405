"""Shared memory without a name, written by one process and read by others.

    small value ─▶ in the message
    large value ─▶ a block of the sender's arena ─▶ copied out, or viewed there until no view is left ─▶ reused

An arena is a file that exists only while a process has it open, so that nothing is left of it however the processes
end; the names of `multiprocessing.shared_memory` outlive processes that are killed. Workers start with the descriptors
of two arenas, the driver's and their own: no descriptor travels with a message.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from swath.errors import Closed
from swath.owner import Owner
from swath.workers.packing import Packed, pack, unpack, writable_copies

Bytes: TypeAlias = npt.NDArray[np.uint8]

_INLINE_BYTES = 1 << 14
_ALIGNMENT = 64
_SPARE_BLOCKS = 2
_NOTHING: Bytes = np.empty(0, dtype=np.uint8)

Block: TypeAlias = tuple[int, int]
"""The start of a part of an arena, which identifies it, and its size."""


class Payload(NamedTuple):
    """A value in a message.

    Attributes:
        head: its structure; empty if the value is in a block.
        buffers: the memory of its arrays; empty if the value is in a block.
        start: start of the block in the sender's arena.
        size: size of the block, in bytes; 0 for none.
        parts: number of parts in the block, one after another behind their sizes.
    """

    head: bytes
    buffers: list[bytearray]
    start: int = 0
    size: int = 0
    parts: int = 0


class Lease:
    """Keeps a block from being reused while the lease exists.

    Args:
        block: the block.
        free: gets the block afterwards. That takes no lock: garbage is collected in any thread.
    """

    def __init__(self, block: Block, free: deque[Block]) -> None:
        self.block = block
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.block)


class MappedFile:
    """A file mapped into this process; mapped again when it has grown.

    Args:
        fd: descriptor of the file.
        access: whether this process may write, as `mmap` names it.
    """

    def __init__(self, fd: int, access: int) -> None:
        self.fd, self._access, self._owner = fd, access, Owner()
        self._map: Any = None
        self._mapped = _NOTHING

    def bytes(self, start: int, size: int) -> Bytes:
        """Return a part of the file.

        Raises:
            Closed: this process is a fork of the one that maps the file.
        """
        self._owner.require_here("blocks of shared memory")
        if start + size > len(self._mapped):
            self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size, access=self._access)
            self._mapped = np.frombuffer(self._map, dtype=np.uint8)
        return self._mapped[start : start + size]

    def close(self) -> None:
        """Unmap the file once no view is left, and close it; the last process that has it open releases its memory."""
        self._map, self._mapped = None, _NOTHING  # the map has its own descriptor
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Arena(MappedFile):
    """The blocks that this process writes; reused when no lease is left. Used by any thread.

    Args:
        fd: descriptor of the file that holds them; a new file by default.
    """

    def __init__(self, fd: int | None = None) -> None:
        super().__init__(os.memfd_create("swath") if fd is None else fd, mmap.ACCESS_WRITE)
        self._lock = threading.Lock()
        self._free: deque[Block] = deque()
        self._end = 0

    def write(self, packed: Packed) -> tuple[Payload, Lease]:
        """Write a value into a block."""
        parts = [memoryview(packed.head), *packed.buffers]
        sizes = np.array([part.nbytes for part in parts])
        *starts, end = _starts(sizes)
        with self._lock:
            block = self._free_block(end)
            view = self.bytes(*block)
        for part, start in zip([sizes.data, *parts], [0, *starts], strict=True):
            np.copyto(view[start : start + part.nbytes], np.frombuffer(part, dtype=np.uint8))
        return Payload(b"", [], *block, len(parts)), Lease(block, self._free)

    def payload(self, packed: Packed) -> tuple[Payload, Lease | None]:
        """Prepare a value for a message: keep a small one inline, write a large one into a block, with its lease."""
        if packed.size + len(packed.head) <= _INLINE_BYTES:
            return Payload(packed.head, packed.copy_buffers()), None
        return self.write(packed)

    def require_open(self) -> None:
        """Raise `Closed` after the end, and in a fork, whose writes would reach readers of the file."""
        if self.fd < 0:
            raise Closed("shared memory is gone: its backend is closed")
        self._owner.require_here("blocks of shared memory")

    def _free_block(self, size: int) -> Block:
        """Return a free block of at least this size; keep two others and release the memory of the rest."""
        self.require_open()
        free = sorted((self._free.popleft() for _ in range(len(self._free))), key=itemgetter(1))
        found = next((block for block in free if block[1] >= size), None)
        others = [block for block in free if block is not found]
        for block in others[:-_SPARE_BLOCKS]:
            self._map.madvise(mmap.MADV_REMOVE, *block)
        self._free.extend(others[-_SPARE_BLOCKS:])
        if found is None:
            found = self._end, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            self._end = sum(found)
            os.ftruncate(self.fd, self._end)
        return found


class ArenaReader(MappedFile):
    """The blocks that another process writes, as this process reads them.

    Attributes:
        returned: starts of the blocks that are not needed any more.
    """

    def __init__(self, fd: int, access: int) -> None:
        super().__init__(fd, access)
        self.returned: deque[int] = deque()

    def copy(self, payload: Payload) -> Any:
        """Copy a value out of its block, with writable arrays, and return the block."""
        if not payload.size:
            return unpack(payload.head, payload.buffers)
        head, *buffers = writable_copies(_split(payload, self.bytes(payload.start, payload.size)))
        self.returned.append(payload.start)
        return unpack(head, buffers)

    def view(self, payload: Payload) -> Any:
        """Return a value whose arrays are views of its block, valid while the sender has the lease."""
        return _unpack_block(payload, self.bytes(payload.start, payload.size))

    def loader(self, payload: Payload) -> Callable[[], Any]:
        """Return a function that loads the value; its block is returned when function, result and views are gone."""
        if not payload.size:
            return partial(unpack, payload.head, payload.buffers)
        view = self.bytes(payload.start, payload.size)
        weakref.finalize(view, self.returned.append, payload.start).atexit = False
        return partial(_unpack_block, payload, view)


driver_arena: list[ArenaReader] = []
"""In a worker: the reader of its driver's arena."""


class SharedReference(NamedTuple):
    """A shared value in a worker, valid while the worker answers the call that brought it."""

    payload: Payload

    def open(self) -> Any:
        """Return the value; its arrays are views that cannot be written."""
        return driver_arena[0].view(self.payload)


class ProcessShared:
    """A value in a block of the driver; travels only in calls, which keep the block until they are answered.

    Args:
        value: its arrays may change afterwards.
        arena: the driver's.
        writable: whether the driver may change the arrays in place.
    """

    def __init__(self, value: Any, arena: Arena, *, writable: bool = False) -> None:
        self._arena, self._writable = arena, writable
        self._payload, self._lease = arena.write(pack(value))

    def __reduce__(self) -> Any:
        self._arena.require_open()
        return SharedReference, (self._payload,)

    def open(self) -> Any:
        """Return the value; its arrays are views."""
        self._arena.require_open()
        view = self._arena.bytes(*self._lease.block)
        view.flags.writeable = self._writable
        return _unpack_block(self._payload, view)


def _unpack_block(payload: Payload, view: Bytes) -> Any:
    """Return a value whose arrays are views of a block and keep `view` alive."""
    head, *buffers = _split(payload, view)
    return unpack(head, buffers)


def _split(payload: Payload, view: Bytes) -> list[memoryview]:
    memory = memoryview(view.data)
    sizes = np.frombuffer(memory, dtype=np.int64, count=payload.parts)
    return [memory[start : start + size] for start, size in zip(_starts(sizes), sizes.tolist(), strict=False)]


def _starts(sizes: npt.NDArray[np.int64]) -> list[int]:
    """Return the start of each part behind the sizes, aligned for any dtype, and the end of the last part."""
    padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in [sizes.nbytes, *sizes.tolist()])
    return list(accumulate(padded))
