"""A socket between a caller and one worker process, for calls that take microseconds.

    caller ── send: number, method, arguments ──▶ worker
    caller ◀── receive: number, answer ────────── worker

No thread is between the two, as there is with tickets: the caller itself reads the answer. A message is one packet,
so that an exception in the caller, as by Ctrl-C, leaves no half of one; an answer to a call that was given up has an
older number, and is left out. What does not fit into a packet is in a file without a name, whose descriptor follows.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import time
from struct import Struct
from typing import Any

from swath.pickles import pickle_value

_MAX_PACKET_BYTES = 1 << 14
_NUMBER = Struct("q")
_IN_FILE = b"\0"


class Lane:
    """One end of the socket. Used by one thread at a time.

    Args:
        sock: carries packets.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, number: int, value: Any = None) -> None:
        """Send a number and a value.

        Raises:
            TypeError: the value cannot be pickled.
            ConnectionError: the other process is gone.
        """
        if value is None:
            self._sock.send(_NUMBER.pack(number))
            return
        try:
            data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001  cloudpickle can do more, and names what it cannot
            data = pickle_value(value)
        if _NUMBER.size + len(data) <= _MAX_PACKET_BYTES:
            self._sock.send(_NUMBER.pack(number) + data)
            return
        with os.fdopen(os.memfd_create("swath"), "wb") as file:
            file.write(data)
            file.flush()
            self._sock.send(_NUMBER.pack(number) + _IN_FILE)
            socket.send_fds(self._sock, [_IN_FILE], [file.fileno()])

    def receive(self, deadline: float | None = None) -> tuple[int, Any]:
        """Receive a number and a value.

        Args:
            deadline: end of the wait in seconds of `time.monotonic`; `None` waits without a limit.

        Raises:
            TimeoutError: the deadline has passed.
            ConnectionError: the other process is gone.
        """
        if deadline is not None:
            self._sock.settimeout(max(deadline - time.monotonic(), 1e-3))
        while (message := self._sock.recv(_MAX_PACKET_BYTES)) == _IN_FILE:
            pass  # descriptors of a file that was not read
        if len(message) == _NUMBER.size:
            return _NUMBER.unpack(message)[0], None
        if not message:
            raise ConnectionError("the other process is gone")
        (number,), data = _NUMBER.unpack_from(message), message[_NUMBER.size :]
        return number, self._from_file() if data == _IN_FILE else pickle.loads(data)  # noqa: S301  of our own process

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def _from_file(self) -> Any:
        _, fds, _, _ = socket.recv_fds(self._sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not fds:
            raise ConnectionError("the other process is gone, or has no file descriptors left")
        (fd,) = fds
        try:
            with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as memory:
                return pickle.loads(memory)  # noqa: S301  of our own process
        finally:
            os.close(fd)
