"""What the driver and its Ray actors say to each other. Imports nothing heavy: actors set their threads first.

driver ─ Setup ─▶ actor ─ Reply ─▶ driver ─ method, Wire ─▶ actor ─ Reply, large body of a parcel ─▶ driver
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from swath.workers.tickets import Name


class Large(NamedTuple):
    """A large value on its way through Ray; see `values`.

    Attributes:
        head: its structure.
        buffers: the memory of its arrays.
        beside: references that are in it.
    """

    head: bytes
    buffers: list[Any]
    beside: list[Any]


Wire: TypeAlias = bytes | Large


class Setup(NamedTuple):
    """Be this worker: these surroundings, then `before`, then `build`.

    Attributes:
        name: which life of which worker.
        path: where the driver finds modules.
        variables: of the environment, set before anything is imported.
        threads: torch's.
        before: as `travelling`.
        build: how to make the object.
    """

    name: Name
    path: list[str]
    variables: dict[str, str]
    threads: int
    before: bytes
    build: Wire
