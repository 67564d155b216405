"""The side of stand-ins that lives in workers: they have one fragment and answer with it at once.

Fragments stay sealed there, so that a stand-in imports little and 64 of them are up soon.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import memory
from swath.workers.packing import Packed, Parcel, pack, unpack


class Sealed:
    """A value that is put together only where it arrives; its arrays travel as always.

    Args:
        packed: the value, taken apart.
    """

    def __init__(self, packed: Packed) -> None:
        self.head = packed.head
        self.arrays = [np.frombuffer(buffer, dtype=np.uint8) for buffer in packed.buffers]

    def __reduce__(self) -> Any:
        return unpack, (self.head, self.arrays)


class StandIn:
    """Answers with one fragment, again and again.

    Args:
        parts: of its head and body: the structures, and the arrays.
    """

    def __init__(self, *parts: tuple[bytes, list[Any]]) -> None:
        self._answer = Parcel(*[Sealed(Packed(head, arrays)) for head, arrays in parts])
        self._before = 0

    def answer(self, update: Any, method: str, args: Any, kwargs: Any) -> Any:  # noqa: ARG002  as a member is asked
        """Call one of the methods below."""
        return getattr(self, method)(*args)

    def collect(self, ask: Any) -> Parcel:  # noqa: ARG002
        """The fragment."""
        return self._answer

    def begin(self) -> None:
        """Watch the memory from now on."""
        self._before = memory.begin()

    def grown(self) -> int:
        """How much more than at the beginning was in use at the peak, in bytes."""
        return memory.peak() - self._before

    def close(self) -> None:
        """Nothing to close."""


def sealed(value: Any) -> tuple[bytes, list[Any]]:
    """A part for `StandIn`."""
    seal = Sealed(pack(value))
    return seal.head, seal.arrays
