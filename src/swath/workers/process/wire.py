"""Frames over a stream socket between processes of one machine, each with file descriptors.

    send ─▶ header (bytes, descriptors) + body ─▶ receive: waits for a frame
                                              └─▶ arrived: what is there already

Sockets stay in blocking mode: whoever must not block says so.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import NamedTuple

_HEADER = struct.Struct("<IIQ")
_MAGIC = 0x53776174
_CHUNK = 1 << 16
_MOST_FDS = 32
_ROOM_FOR_FDS = socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)
_CLOSE_ON_EXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Frame(NamedTuple):
    """What one `send` sent.

    Attributes:
        body: as it was sent.
        fds: descriptors; the receiver's own.
    """

    body: bytes
    fds: list[int]


class Ended(Exception):  # noqa: N818  what happened, not what went wrong
    """The other side has closed its end, or is dead."""


class Wire:
    """One end. Sending and receiving may be done by two threads; each by one at a time.

    Args:
        sock: a connected stream socket of the Unix family; the wire's own from now on.
        patient: whether `send` waits for room, or keeps what does not fit for `flush`.
    """

    def __init__(self, sock: socket.socket, *, patient: bool) -> None:
        self._sock = sock
        self._flags = 0 if patient else socket.MSG_DONTWAIT
        self._unsent: deque[tuple[memoryview, list[int], list[int]]] = deque()
        self._unread = bytearray()
        self._fds: deque[int] = deque()

    def fileno(self) -> int:
        """Its descriptor, for selectors."""
        return self._sock.fileno()

    def send(self, body: bytes, fds: Sequence[int] = ()) -> bool:
        """Send a frame; its descriptors are closed once they have gone.

        Returns:
            Whether all has gone; where not, `flush` when there is room.

        Raises:
            Ended: nobody will read it.
        """
        assert len(fds) <= _MOST_FDS, f"{len(fds)} descriptors in one frame; at most {_MOST_FDS} fit"
        self._unsent.append((memoryview(_HEADER.pack(_MAGIC, len(fds), len(body)) + body), list(fds), []))
        return self.flush()

    def flush(self) -> bool:
        """Send what `send` kept, as far as there is room.

        Returns:
            Whether all has gone.

        Raises:
            Ended: nobody will read it.
        """
        while self._unsent:
            if not self._send_some(*self._unsent[0]):
                return False
        return True

    def receive(self) -> Frame:
        """Wait for a frame.

        Raises:
            Ended: there will be none.
        """
        while (frame := self._cut()) is None:
            self._read(0)
        return frame

    def arrived(self, *, all_of_it: bool = False) -> Iterator[Frame]:
        """The frames that are there; perhaps not all, but then selectors say that there are more.

        Args:
            all_of_it: make sure that there are no more.

        Raises:
            Ended: after the last one.
        """
        while True:
            while (frame := self._cut()) is not None:
                yield frame
            try:
                count = self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if count < _CHUNK and not all_of_it:
                yield from iter(self._cut, None)
                return

    @property
    def held(self) -> list[int]:
        """Descriptors that have come and belong to frames that have not been handed on."""
        return list(self._fds)

    def finish(self, timeout: float) -> bool:
        """Send no more, and wait until the other side has closed its end; what it still says is lost.

        Returns:
            Whether it did.
        """
        until = time.monotonic() + timeout
        try:
            self._sock.shutdown(socket.SHUT_WR)
            while (left := until - time.monotonic()) > 0:
                self._sock.settimeout(left)
                self._read(0)
        except Ended as ended:
            return not isinstance(ended.__cause__, TimeoutError)
        except OSError:
            return True  # it was gone already
        return False

    def close(self) -> None:
        """Close this end, and what was on its way."""
        for _, fds, _ in self._unsent:
            close_all(fds)
        close_all(self._fds)
        self._unsent.clear()
        self._fds.clear()
        self._sock.close()

    def _send_some(self, data: memoryview, fds: list[int], gone: list[int]) -> bool:
        """Send more of a frame, of which as much has gone as the numbers in `gone` say together.

        An interrupt may come anywhere: what is known is at any time what is the case.
        """
        rest = data[sum(gone) :]
        files = [] if gone or not fds else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        if rest:
            try:
                gone.extend(starmap(self._sock.sendmsg, [([rest], files, self._flags)]))  # sent and noted in one go
            except BlockingIOError:
                return False
            except OSError as error:
                raise Ended from error
        while fds:
            os.close(fds.pop())
        if sum(gone) == len(data):
            self._unsent.popleft()
        return True

    def _read(self, flags: int) -> int:
        try:
            data, ancillary, told, _ = self._sock.recvmsg(_CHUNK, _ROOM_FOR_FDS, flags | _CLOSE_ON_EXEC)
        except BlockingIOError:
            raise
        except OSError as error:
            raise Ended from error
        self._fds.extend(_descriptors(ancillary))
        if told & socket.MSG_CTRUNC:
            raise OSError("file descriptors were lost on their way: too many files are open; raise `ulimit -n`")
        if not data:
            raise Ended
        self._unread += data
        return len(data)

    def _cut(self) -> Frame | None:
        unread = self._unread
        if len(unread) < _HEADER.size:
            return None
        magic, n_fds, length = _HEADER.unpack_from(unread)
        if magic != _MAGIC:
            raise OSError(f"a frame begins with {magic:#x}; the wire is out of step")
        end = _HEADER.size + length
        if len(unread) < end:
            return None
        body = bytes(memoryview(unread)[_HEADER.size : end])
        del unread[:end]
        return Frame(body, [self._fds.popleft() for _ in range(n_fds)])


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not _CLOSE_ON_EXEC:
        for fd in fds:
            os.set_inheritable(fd, False)  # noqa: FBT003  its only parameter
    return list(fds)


def close_all(fds: Iterable[int]) -> None:
    """Close these descriptors."""
    for fd in fds:
        os.close(fd)


def flush() -> None:
    """Send on what was printed."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or the user has closed it
                stream.flush()
