"""Messages between a driver and its actors on Ray.

This module imports nothing heavy: numpy and torch read how many threads they may have when they are imported.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from swath.workers.tickets import Name


class Large(NamedTuple):
    """A large packed value; see `values`.

    Attributes:
        head: its structure.
        buffers: the memory of its arrays.
        references: Ray's references in it.
    """

    head: bytes
    buffers: list[Any]
    references: list[Any]


PackedValue: TypeAlias = bytes | Large

Answer: TypeAlias = tuple[Any, Large | bytes]
"""A reply; and the body of a parcel if it is large, which stays in Ray's store, else no bytes."""


class Setup(NamedTuple):
    """Start-up data of a worker.

    Attributes:
        name: the life of the worker.
        path: the driver's search path of modules.
        variables: variables of the environment, set before anything is imported.
        threads: torch's.
        initializer: bytes of `serialize_function`.
        build: the packed function that builds the object.
    """

    name: Name
    path: list[str]
    variables: dict[str, str]
    threads: int
    initializer: bytes
    build: PackedValue
