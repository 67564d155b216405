"""What the driver, the fork server and the workers send each other, and how.

    driver ─ preload, start, kill ─▶ fork server ─ pid, exit ─▶ driver: a socket; a pipe for each worker
    driver ─ Request ─▶ worker ─ Answer ─▶ driver: a socket for each worker

Imports nothing heavy: a worker reads what it is before torch and numpy are there.

The connections of `multiprocessing` cannot pass descriptors along with a message, and one that is cut off by Ctrl-C
between the two, or by a full pipe, leaves both sides out of step. Here a message for which there is room goes in one
system call, descriptors included: all of it, or nothing.
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from swath.workers.tickets import Name

_SIZE = struct.Struct("<Q")
_MOST_FDS = 250
_CLOSE_ON_EXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

News: TypeAlias = tuple[tuple[tuple[int, int], ...], tuple[int, ...], tuple[int, ...]]
"""What a message says of shared memory: blocks (id, size) that the receiver sees for the first time, whose descriptors
come along; blocks of the sender that are gone; blocks of the receiver that the sender needs no longer."""


class Setup(NamedTuple):
    """Be this worker: these surroundings, then `before`, then `build`.

    Attributes:
        name: which life of which worker.
        environ: variables of the environment.
        path: where modules are found.
        argv: the program's arguments.
        cwd: the working directory.
        threads: torch's, and those of the libraries below it.
        start_method: of `multiprocessing`, if the caller has set one.
        authkey: lets the worker use what a `multiprocessing.Manager` of the caller holds.
        before: as `travelling`.
        build: how to make the object, and arrays in that.
    """

    name: Name
    environ: dict[str, str]
    path: list[str]
    argv: list[str]
    cwd: str
    threads: int
    start_method: str | None
    authkey: bytes
    before: bytes
    build: tuple[bytes, list[bytearray]]


class Payload(NamedTuple):
    """A value in a message.

    Attributes:
        head: its structure; empty if the value is in a block.
        buffers: the memory of its arrays, likewise.
        sizes: of these parts, where they are in a block.
        block: its id.
    """

    head: bytes
    buffers: list[bytearray]
    sizes: tuple[int, ...] = ()
    block: int = 0


class Request(NamedTuple):
    """Call a method.

    Attributes:
        serial: the answer has the same.
        method: its name.
        args: the arguments.
        news: of shared memory.
    """

    serial: int
    method: str
    args: Payload
    news: News


class Answer(NamedTuple):
    """What became of a call.

    Attributes:
        serial: of the request; 0 for the setup.
        reply: a `message.Reply` of payloads.
        news: of shared memory.
    """

    serial: int
    reply: Any
    news: News


def send(sock: socket.socket, message: bytes, fds: Sequence[int] = ()) -> None:
    """Send a message; the descriptors stay open here.

    Raises:
        OSError: nobody will read it.
    """
    data = _SIZE.pack(len(message)) + message
    done = socket.send_fds(sock, [data], fds) if fds else sock.send(data)
    if done < len(data):
        sock.sendall(memoryview(data)[done:])


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Wait for a message and its descriptors.

    Raises:
        EOFError: there will be none.
        OSError: descriptors were lost.
    """
    try:
        head, fds, flags, _ = socket.recv_fds(sock, _SIZE.size, _MOST_FDS, _CLOSE_ON_EXEC)
    except ConnectionError as error:
        raise EOFError from error
    if flags & socket.MSG_CTRUNC:
        raise OSError("file descriptors were lost on their way: too many files are open; raise `ulimit -n`")
    message = sock.recv(_SIZE.unpack(head)[0], socket.MSG_WAITALL) if len(head) == _SIZE.size else b""
    if not message or len(message) != _SIZE.unpack(head)[0]:
        raise EOFError
    return message, fds


def new_memory(size: int) -> int:
    """The descriptor of that many zero bytes without a name, closed on exec."""
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


def close_all(fds: Iterable[int]) -> None:
    """Close these descriptors."""
    for fd in fds:
        os.close(fd)
