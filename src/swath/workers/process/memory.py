"""Memory without a name that two processes see at once: written on one side, read on the other.

    small value ─▶ in the message
    large value ─▶ a block ─▶ copied out, or viewed there until nobody has a view ─▶ the block is written anew

Nothing of it has a name in the file system: the memory goes with the last process that has it, however that one ends.
That is why it is not `multiprocessing.shared_memory`, whose names outlive processes that are killed. A block's
descriptor is sent with the first message that names it.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from swath.workers.packing import Packed, Pickler, owned, pack, unpack
from swath.workers.process.message import News, Payload, new_memory

Bytes: TypeAlias = npt.NDArray[np.uint8]

_INLINE_BYTES = 1 << 14
_ALIGNMENT = 64
_SPARE_BLOCKS = 2


class Block:
    """Memory that is written on this side.

    Attributes:
        id: unique within its pool.
        fd: its descriptor.
        view: all of it.
    """

    def __init__(self, block_id: int, size: int) -> None:
        self.id = block_id
        self.fd = new_memory(size)
        try:
            self.view = _mapped(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Let go of it; the memory goes when the other side has let go too."""
        os.close(self.fd)
        self.view = np.empty(0, dtype=np.uint8)


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


class Pool:
    """The blocks that a process writes; they are used again when nobody needs them any more. Used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = count(1)
        self._blocks: dict[int, Block] = {}
        self._free: deque[Block] = deque()

    def lend(self, packed: Packed) -> tuple[Payload, Lease]:
        """Write a value into a block."""
        parts = [memoryview(packed.head), *packed.buffers]
        sizes = tuple(part.nbytes for part in parts)
        with self._lock:
            block = self._free_block(sum(map(_padded, sizes)))
        for part, start in zip(parts, _starts(sizes), strict=True):
            np.copyto(block.view[start : start + part.nbytes], np.frombuffer(part, dtype=np.uint8))
        return Payload(b"", [], sizes, block.id), Lease(block, self._free)

    def gone(self, known: set[int]) -> tuple[int, ...]:
        """Which of these ids are no blocks any more."""
        return tuple(known - self._blocks.keys())

    def close(self) -> None:
        """Let go of all blocks."""
        with self._lock:
            while self._blocks:
                self._blocks.popitem()[1].close()

    def _free_block(self, size: int) -> Block:
        free = [self._free.popleft() for _ in range(len(self._free))]
        free = sorted((block for block in free if block.id in self._blocks), key=lambda block: block.view.nbytes)
        for block in free[:-_SPARE_BLOCKS]:
            self._blocks.pop(block.id).close()
        found = next((block for block in free[-_SPARE_BLOCKS:] if block.view.nbytes >= size), None)
        self._free.extend(block for block in free[-_SPARE_BLOCKS:] if block is not found)
        if found is None:
            found = Block(next(self._ids), -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            self._blocks[found.id] = found
        return found


class SharedBlocks:
    """The blocks that two processes show each other, as one of the two knows them.

    Args:
        pool: blocks that are written on this side.
        writable: whether blocks of the other side may be written here.

    Attributes:
        lent: what the other side has not returned, by id.
    """

    def __init__(self, pool: Pool, *, writable: bool) -> None:
        self.pool = pool
        self.lent: dict[int, Lease] = {}
        self._writable = writable
        self._shown: set[int] = set()
        self._seen: dict[int, Bytes] = {}
        self._returned: deque[int] = deque()

    def news(self, leases: Iterable[Lease]) -> tuple[News, list[int]]:
        """What goes into the next message, which names these blocks; and copies of descriptors that it brings."""
        fresh = {lease.block.id: lease.block for lease in leases if lease.block.id not in self._shown}
        shown = tuple((block.id, block.view.nbytes) for block in fresh.values())
        returned = tuple(self._returned.popleft() for _ in range(len(self._returned)))
        return (shown, self.pool.gone(self._shown), returned), [os.dup(block.fd) for block in fresh.values()]

    def note_sent(self, news: News) -> None:
        """A message with this was sent. If Ctrl-C comes before, blocks are shown again, which does no harm."""
        shown, gone, _ = news
        self._shown.update(block_id for block_id, _ in shown)
        self._shown.difference_update(gone)

    def learn(self, news: News, fds: Sequence[int]) -> None:
        """Take in what a message of the other side has brought."""
        shown, gone, returned = news
        for (block_id, size), fd in zip(shown, fds, strict=True):
            try:
                self._seen[block_id] = _mapped(fd, size, writable=self._writable)
            finally:
                os.close(fd)
        for block_id in gone:
            self._seen.pop(block_id, None)
        for block_id in returned:
            self.lent.pop(block_id, None)

    def own(self, payload: Payload) -> Any:
        """A value, whose block goes back; its arrays are nobody else's, and writable."""
        if not payload.block:
            return unpack(payload.head, payload.buffers)
        head, *buffers = owned(_split(payload, self._seen[payload.block]))
        self._returned.append(payload.block)
        return unpack(head, buffers)

    def view(self, payload: Payload) -> Any:
        """A value in a block of the other side; its arrays are views, good while the sender holds the block."""
        return viewed(payload, self._seen[payload.block])

    def leased(self, payload: Payload) -> Callable[[], Any]:
        """Gives a value; its arrays are views of its block, which goes back when the result and all views are gone."""
        if not payload.block:
            return partial(unpack, payload.head, payload.buffers)
        lease = self._seen[payload.block][:]
        weakref.finalize(lease, self._returned.append, payload.block).atexit = False
        return partial(viewed, payload, lease)

    def close(self) -> None:
        """Let go of the other side's blocks; their memory goes with the last views of it."""
        self._seen.clear()


def sent(packed: Packed, pool: Pool) -> tuple[Payload, list[Lease]]:
    """A value as it travels, and the block that it lies in, if it is large."""
    if packed.size + len(packed.head) <= _INLINE_BYTES:
        return Payload(packed.head, packed.copies()), []
    payload, lease = pool.lend(packed)
    return payload, [lease]


def viewed(payload: Payload, view: Bytes) -> Any:
    """A value in a block; its arrays are views of it, and keep `view` alive."""
    head, *buffers = _split(payload, view)
    return unpack(head, buffers)


class ProcessShared:
    """A value in a block of the driver; travels only in calls, see `CallPickler`.

    Args:
        value: arrays in it may change afterwards.
        pool: the driver's.
    """

    def __init__(self, value: Any, pool: Pool) -> None:
        self._payload, lease = pool.lend(pack(value))
        self._lease: Lease | None = lease

    def __reduce__(self) -> Any:
        raise TypeError("a shared value travels only as an argument of a call to a worker")

    def sent(self) -> tuple[Payload, Lease]:
        """Where the value is.

        Raises:
            ValueError: it was released.
        """
        if self._lease is None:
            raise ValueError("this shared value was released; share it anew")
        return self._payload, self._lease

    def open(self) -> Any:
        """The value; its arrays are views that must not be written."""
        payload, lease = self.sent()
        view = lease.block.view[:]
        view.flags.writeable = False
        return viewed(payload, view)

    def release(self) -> None:
        """No further call will name it."""
        self._lease = None


class ProcessWatched(ProcessShared):
    """Numbers in a block of the driver, who changes them while workers look."""

    def __init__(self, size: int, pool: Pool) -> None:
        super().__init__(np.zeros(size, dtype=np.int64), pool)
        payload, lease = self.sent()
        self.values = viewed(payload, lease.block.view)


class Lent:
    """A shared value in a worker; good while it answers the call that brought it."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload

    def open(self) -> Any:
        """The value; its arrays are views that cannot be written."""
        return of_driver.view(self._payload)

    def release(self) -> None:
        """The driver does that."""


class CallPickler(Pickler):
    """Pickles the arguments of a call; shared values among them become `Lent`.

    Attributes:
        leases: of these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[Lease] = []

    def reducer_override(self, obj: Any) -> Any:
        """How an object is taken apart; a persistent id would be asked for of every number, too."""
        if not isinstance(obj, ProcessShared):
            return super().reducer_override(obj)
        payload, lease = obj.sent()
        self.leases.append(lease)
        return Lent, (payload,)


def _mapped(fd: int, size: int, *, writable: bool = True) -> Bytes:
    """The memory as bytes; it stays mapped while any view of them lives."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return np.frombuffer(mmap.mmap(fd, size, access=access), dtype=np.uint8)


def _split(payload: Payload, view: Bytes) -> list[memoryview]:
    whole, starts = memoryview(view.data), _starts(payload.sizes)
    return [whole[start : start + size] for start, size in zip(starts, payload.sizes, strict=True)]


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where parts of these sizes begin, one after another, so that any dtype may begin there."""
    return list(accumulate(map(_padded, sizes[:-1]), initial=0))


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


of_driver = SharedBlocks(Pool(), writable=False)
"""In a worker: the blocks that it shares with its driver."""
