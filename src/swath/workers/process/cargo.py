"""Values in frames: small ones in the frame itself, large arrays in memory that is given away or lent.

pack ─▶ given ─▶ frame ─▶ taken: the receiver's own
    └─▶ lent ──▶ frame ─▶ viewed: good while the block is held
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from swath.workers.packing import Packed, unpack
from swath.workers.process.blocks import Block, Bytes, Lender, extent, filled, mapped, new_memory, offsets
from swath.workers.process.messages import Cargo

INLINE_BYTES = 1 << 16


def given(packed: Packed, fds: list[int]) -> Cargo:
    """The value for the receiver to keep; a descriptor is added to `fds` if it is large."""
    if packed.size <= INLINE_BYTES:
        return Cargo(packed.head, tuple(map(bytearray, packed.buffers)))
    sizes = _sizes(packed.buffers)
    fd = new_memory(extent(sizes))
    try:
        filled(mapped(fd, extent(sizes)), packed.buffers)
    except BaseException:
        os.close(fd)
        raise
    fds.append(fd)
    return Cargo(packed.head, (), sizes)


def taken(cargo: Cargo, fds: Iterator[int]) -> Any:
    """The value; its arrays are the receiver's own, and writable."""
    if not cargo.sizes:
        return unpack(cargo.head, cargo.inline)
    fd = next(fds)
    try:
        view = mapped(fd, extent(cargo.sizes))
    finally:
        os.close(fd)
    return viewed(cargo, view)


def lent(packed: Packed, lender: Lender, least: int = INLINE_BYTES) -> tuple[Cargo, Block | None]:
    """The value in a block, which has one holder then; without one, in the frame, if it is not larger than `least`."""
    if packed.size <= least:
        return Cargo(packed.head, tuple(map(bytearray, packed.buffers))), None
    block = lender.write(packed.buffers)
    return Cargo(packed.head, (), _sizes(packed.buffers), block.id), block


def introduced(blocks: Iterable[Block], known: set[int]) -> tuple[tuple[tuple[int, int], ...], list[int]]:
    """What a frame that names these blocks must say of those that are not known: (id, size) and descriptors."""
    fresh = [block for block in blocks if block.id not in known]
    fds = [os.dup(block.fd) for block in fresh]
    known.update(block.id for block in fresh)
    return tuple((block.id, block.size) for block in fresh), fds


def viewed(cargo: Cargo, view: Bytes) -> Any:
    """The value; its arrays are views of the memory that it was written to, and keep `view` alive."""
    whole, starts = memoryview(view.data), offsets(cargo.sizes)
    return unpack(cargo.head, [whole[start : start + size] for start, size in zip(starts, cargo.sizes, strict=True)])


def _sizes(buffers: Sequence[memoryview]) -> tuple[int, ...]:
    return tuple(buffer.nbytes for buffer in buffers)
