"""Where processes of workers begin: `python -P entry.py FD`.

The interpreter that is started here is the nursery: it imports once what all workers need, and forks them. It is run by
path, not by name, so that it needs nothing of its own surroundings: where modules are found is the first thing that
its parent tells it.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import sys
from collections.abc import Sequence

_LENGTH = struct.Struct("<I")


def greeting(driver: int, path: Sequence[str]) -> bytes:
    """What the parent sends first: who it is, and where modules are found."""
    data = json.dumps([driver, list(path)]).encode()
    return _LENGTH.pack(len(data)) + data


def main(fd: int) -> None:
    """Be a nursery for whoever holds the other end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    first = sock.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(first) < _LENGTH.size:
        return  # the driver is gone already
    (length,) = _LENGTH.unpack(first)
    driver, sys.path[:] = json.loads(sock.recv(length, socket.MSG_WAITALL))
    from swath.workers.process.nursery import serve  # noqa: PLC0415  it is found only now

    serve(sock, driver)


if __name__ == "__main__":
    main(int(sys.argv[1]))
