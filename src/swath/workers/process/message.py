"""What the driver, the fork server and the workers send each other, and how.

    driver ─ preload, start, kill ─▶ fork server ─ pid, exit ─▶ driver: a socket; a pipe for each worker
    driver ─ Request ─▶ worker ─ Answer ─▶ driver: a socket for each worker

The connections of `multiprocessing` cannot pass descriptors along with a message, and one that is cut off by Ctrl-C
between the two, or by a full pipe, leaves both sides out of step. Here a message for which there is room goes in one
system call, descriptors included: all of it, or nothing.
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

_HEAD = struct.Struct("<QB")  # bytes and descriptors
_PIECE = 1 << 16
_MOST_FDS = 250
_CLOSE_ON_EXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

News: TypeAlias = tuple[tuple[tuple[int, int], ...], tuple[int, ...], tuple[int, ...]]
"""What a message says of shared memory: blocks (id, size) that the receiver sees for the first time, whose descriptors
come along; blocks of the sender that are gone; blocks of the receiver that the sender needs no longer."""


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


Request: TypeAlias = tuple[int, str, Payload, News]
"""Its number, a method, the arguments, news of shared memory."""

Answer: TypeAlias = tuple[int, Payload, Payload | None, News]
"""The number of the request, or 0 to the setup; two parts, see `reply_to`; news of shared memory."""


def send(sock: socket.socket, message: bytes, fds: Sequence[int] = ()) -> None:
    """Send a message; the descriptors stay open here.

    Raises:
        OSError: nobody will read it.
    """
    data = _HEAD.pack(len(message), len(fds)) + message
    done = socket.send_fds(sock, [data], fds) if fds else sock.send(data)
    if done < len(data):
        sock.sendall(memoryview(data)[done:])


class Inbox:
    """The messages that arrive at a socket, which may come in pieces.

    Args:
        sock: likewise.

    Attributes:
        fds: descriptors that have come, of messages that have not.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.fds: list[int] = []
        self._sock = sock
        self._data = bytearray()

    def arrived(self) -> Iterator[tuple[bytearray, list[int]]]:
        """Wait for one piece; the messages that are complete with it, and their descriptors.

        Raises:
            EOFError: there will be none.
            OSError: descriptors were lost.
        """
        try:
            data, fds, flags, _ = socket.recv_fds(self._sock, _PIECE, _MOST_FDS, _CLOSE_ON_EXEC)
        except ConnectionError as error:
            raise EOFError from error
        self._data += data
        self.fds += fds
        if flags & socket.MSG_CTRUNC:
            raise OSError("file descriptors were lost on their way: too many files are open; raise `ulimit -n`")
        if not data:
            raise EOFError
        while len(self._data) >= _HEAD.size:
            size, n = _HEAD.unpack_from(self._data)
            end = _HEAD.size + size
            if len(self._data) < end:
                return
            message, its = self._data[_HEAD.size : end], self.fds[:n]
            del self._data[:end], self.fds[:n]
            yield message, its


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
