"""Memory without a name that is written by one process and read by others.

    small value ─▶ in the message
    large value ─▶ a block of the sender's arena ─▶ copied out, or viewed there until nobody has a view ─▶ used again

An arena is a file that exists only while a process has it open, so that nothing is left of it however they end. That
is why it is not `multiprocessing.shared_memory`, whose names outlive processes that are killed. Workers are given the
descriptors of two arenas when they begin, the driver's and their own: none travels with a message.
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
from swath.workers.packing import Packed, owned, pack, unpack

Bytes: TypeAlias = npt.NDArray[np.uint8]

_INLINE_BYTES = 1 << 14
_ALIGNMENT = 64
_SPARE_BLOCKS = 2
_NOTHING: Bytes = np.empty(0, dtype=np.uint8)

Block: TypeAlias = tuple[int, int]
"""Where a part of an arena begins, where no other ever does, and its size."""


class Payload(NamedTuple):
    """A value in a message.

    Attributes:
        head: its structure; empty if the value is in a block.
        buffers: the memory of its arrays, likewise.
        start: of the block in the sender's arena.
        size: of the block, in bytes; 0 for none.
        parts: how many lie there one after another, behind their sizes.
    """

    head: bytes
    buffers: list[bytearray]
    start: int = 0
    size: int = 0
    parts: int = 0


class Lease:
    """A block that is needed as it is, until nobody has the lease.

    Args:
        block: likewise.
        free: where it goes then. No lock may be taken for that: garbage is collected anywhere.
    """

    def __init__(self, block: Block, free: deque[Block]) -> None:
        self.block = block
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.block)


class Mapped:
    """A file as this process sees it; mapped anew when it has grown.

    Args:
        fd: of the file.
        access: whether it may be written here, as `mmap` names it.
    """

    def __init__(self, fd: int, access: int) -> None:
        self.fd, self._access, self._owner = fd, access, Owner()
        self._map: Any = None
        self._whole = _NOTHING

    def bytes(self, start: int, size: int) -> Bytes:
        """Return a part of the file.

        Raises:
            Closed: this process is a fork of the one that maps the file.
        """
        self._owner.require_here("blocks of shared memory")
        if start + size > len(self._whole):
            self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size, access=self._access)
            self._whole = np.frombuffer(self._map, dtype=np.uint8)
        return self._whole[start : start + size]

    def close(self) -> None:
        """Let go of what is mapped, but for what is still needed."""
        self._map, self._whole = None, _NOTHING  # what is mapped has a descriptor of its own


class Arena(Mapped):
    """The blocks that a process writes; they are used again when nobody needs them any more. Used by any thread.

    Args:
        fd: the file that they are in; a new one by default.
    """

    def __init__(self, fd: int | None = None) -> None:
        super().__init__(os.memfd_create("swath") if fd is None else fd, mmap.ACCESS_WRITE)
        self._lock = threading.Lock()
        self._free: deque[Block] = deque()
        self._end = 0

    def lend(self, packed: Packed) -> tuple[Payload, Lease]:
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

    def sent(self, packed: Packed) -> tuple[Payload, Lease | None]:
        """A value as it travels, and the block that it lies in, if it is large."""
        if packed.size + len(packed.head) <= _INLINE_BYTES:
            return Payload(packed.head, packed.copies()), None
        return self.lend(packed)

    def close(self) -> None:
        """Let go of the file; its memory goes with the last that has it."""
        super().close()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def require_open(self) -> None:
        """Raise `Closed` after the end, and in a fork, which would change what the owner of the file reads."""
        if self.fd < 0:
            raise Closed("shared memory is gone: its backend is closed")
        self._owner.require_here("blocks of shared memory")

    def _free_block(self, size: int) -> Block:
        self.require_open()
        free = sorted((self._free.popleft() for _ in range(len(self._free))), key=itemgetter(1))
        found = next((block for block in free if block[1] >= size), None)
        left = [block for block in free if block is not found]
        for block in left[:-_SPARE_BLOCKS]:
            self._map.madvise(mmap.MADV_REMOVE, *block)
        self._free.extend(left[-_SPARE_BLOCKS:])
        if found is None:
            found = self._end, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            self._end = sum(found)
            os.ftruncate(self.fd, self._end)
        return found


class Window(Mapped):
    """The blocks that another process writes, as they are read here.

    Attributes:
        returned: where blocks begin that are not needed any more.
    """

    def __init__(self, fd: int, access: int) -> None:
        super().__init__(fd, access)
        self.returned: deque[int] = deque()

    def own(self, payload: Payload) -> Any:
        """A value, whose block is not needed any more; its arrays are nobody else's, and writable."""
        if not payload.size:
            return unpack(payload.head, payload.buffers)
        head, *buffers = owned(_split(payload, self.bytes(payload.start, payload.size)))
        self.returned.append(payload.start)
        return unpack(head, buffers)

    def view(self, payload: Payload) -> Any:
        """A value in a block; its arrays are views, good while the sender holds the block."""
        return viewed(payload, self.bytes(payload.start, payload.size))

    def leased(self, payload: Payload) -> Callable[[], Any]:
        """Gives a value; its block is needed until the result and all views of it are gone."""
        if not payload.size:
            return partial(unpack, payload.head, payload.buffers)
        lease = self.bytes(payload.start, payload.size)
        weakref.finalize(lease, self.returned.append, payload.start).atexit = False
        return partial(viewed, payload, lease)


def viewed(payload: Payload, view: Bytes) -> Any:
    """A value in a block; its arrays are views of it, and keep `view` alive."""
    head, *buffers = _split(payload, view)
    return unpack(head, buffers)


of_driver: list[Window] = []
"""In a worker: what its driver writes."""


class Lent(NamedTuple):
    """A shared value in a worker; good while it answers the call that brought it."""

    payload: Payload

    def open(self) -> Any:
        """The value; its arrays are views that cannot be written."""
        return of_driver[0].view(self.payload)


class ProcessShared:
    """A value in a block of the driver; travels only in calls, which keep it until they are answered.

    Args:
        value: arrays in it may change afterwards.
        arena: the driver's.
        writable: whether arrays in it may be changed where they are, by the driver.
    """

    def __init__(self, value: Any, arena: Arena, *, writable: bool = False) -> None:
        self._arena, self._writable = arena, writable
        self._payload, self._lease = arena.lend(pack(value))

    def __reduce__(self) -> Any:
        self._arena.require_open()
        return Lent, (self._payload,)

    def open(self) -> Any:
        """The value; its arrays are views."""
        self._arena.require_open()
        view = self._arena.bytes(*self._lease.block)
        view.flags.writeable = self._writable
        return viewed(self._payload, view)


def _split(payload: Payload, view: Bytes) -> list[memoryview]:
    whole = memoryview(view.data)
    sizes = np.frombuffer(whole, dtype=np.int64, count=payload.parts)
    return [whole[start : start + size] for start, size in zip(_starts(sizes), sizes.tolist(), strict=False)]


def _starts(sizes: npt.NDArray[np.int64]) -> list[int]:
    """Where parts of these sizes begin, behind the sizes, so that any dtype may begin there; and where they end."""
    padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in [sizes.nbytes, *sizes.tolist()])
    return list(accumulate(padded))
