"""Where processes of workers begin: `python -P entry.py FD DRIVER PATH`.

The interpreter that is started here is the nursery: it imports once what all workers need, and forks them. It is run by
path, not by name, so that it needs nothing of its own surroundings: where modules are found is an argument.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Sequence


def main(fd: int, driver: int, path: Sequence[str]) -> None:
    """Be a nursery for whoever holds the other end of the socket.

    Args:
        fd: of the socket.
        driver: the process that began this one.
        path: where modules are found.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    sys.path[:] = path
    from swath.workers.process.nursery import serve  # noqa: PLC0415  it is found only now

    serve(sock, driver)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
