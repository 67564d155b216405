"""What the driver, its nursery and its process workers say to each other; frames are pickles of these.

Imports nothing heavy: a worker reads what it is before torch and numpy are there.

driver ─ Preload, Fork, Kill ─▶ nursery          driver ─ Setup, Request, Request, … ─▶ worker
       ◀─ Ready, Forked, Ended ─                        ◀─ Reply (built), Reply, … ───
"""

from __future__ import annotations

from typing import NamedTuple

from swath.workers.tickets import Name


class Cargo(NamedTuple):
    """A value in a frame.

    Attributes:
        head: its structure.
        inline: its buffers, where they are small.
        sizes: of its buffers, where they are in memory of their own.
        block: the id of the block that is lent; 0 for memory that is given away.
    """

    head: bytes
    inline: tuple[bytearray, ...] = ()
    sizes: tuple[int, ...] = ()
    block: int = 0


class Preload(NamedTuple):
    """Import these modules, which are found there, and say that you are ready."""

    modules: tuple[str, ...]
    path: list[str]


class Fork(NamedTuple):
    """Fork a worker. Its end of its wire comes along, then what it writes to: standard output and error, or neither."""

    worker: int


class Kill(NamedTuple):
    """End a worker, and all it has started."""

    worker: int


class Ready(NamedTuple):
    """All is imported; forks are quick now."""


class Forked(NamedTuple):
    """A worker has a process."""

    worker: int
    pid: int


class Ended(NamedTuple):
    """A worker has no process any more: an exit code, minus a signal's number, or why there never was one."""

    worker: int
    exit: int | str


class Setup(NamedTuple):
    """Be this worker: these surroundings, then `before`, then `build`, whose descriptor comes along.

    Attributes:
        authkey: lets the worker use what a `multiprocessing.Manager` of the caller holds.
        before: as `travelling`.
        build: how to make the object.
    """

    name: Name
    environ: dict[str, str]
    path: list[str]
    argv: list[str]
    cwd: str
    threads: int
    authkey: bytes
    before: bytes
    build: Cargo


class Request(NamedTuple):
    """Call a method with these arguments.

    Attributes:
        serial: the answer has the same.
        method: its name.
        args: the arguments; their descriptor comes last.
        fresh: blocks (id, size) that are shared with the worker for the first time; their descriptors come first.
        gone: blocks that are shared no longer.
        returned: blocks of the worker that are no longer needed.
    """

    serial: int
    method: str
    args: Cargo
    fresh: tuple[tuple[int, int], ...] = ()
    gone: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()


class Reply(NamedTuple):
    """What became of a call.

    Attributes:
        serial: of the request; 0 for the setup.
        value: what it returned, or the head of a parcel; bytes of `frozen` if it raised.
        body: of a parcel.
        fresh: blocks (id, size) that are lent for the first time; their descriptors come first.
        gone: blocks that are not lent any more.
    """

    serial: int
    value: Cargo | bytes
    body: Cargo | None = None
    fresh: tuple[tuple[int, int], ...] = ()
    gone: tuple[int, ...] = ()
