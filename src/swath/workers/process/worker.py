"""The loop of a worker process: requests become calls of its object, outcomes become replies."""

from __future__ import annotations

import mmap
import pickle
import socket
from functools import partial
from typing import Any, TypeAlias

from swath.owner import Owner
from swath.workers.hosting import WorkerObject
from swath.workers.outcome import Outcome
from swath.workers.packing import pack, pack_reply, unpack
from swath.workers.process.memory import Arena, ArenaReader, Lease, Payload, driver_arena
from swath.workers.tickets import Name

MAX_MESSAGE_BYTES = 1 << 16
"""Larger values are in an arena."""

Call: TypeAlias = tuple[int, str, Payload, list[int]]
"""The number of its ticket, a method, the arguments, and blocks of the worker that are not needed any more."""

inherited_fds: list[int] = []
"""In a worker: the file descriptors of its job."""

Answer: TypeAlias = tuple[int, Payload, Payload | None]
"""The number of the ticket and two parts; see `pack_reply`."""


class WorkerServer:
    """Builds a worker's object and answers requests.

    Args:
        sock: socket to the driver; a message is one packet.
        arenas: files that the driver and this worker write.
        name: the life of the worker.
    """

    def __init__(self, sock: socket.socket, arenas: tuple[int, int], name: Name) -> None:
        driver_arena[:] = [ArenaReader(arenas[0], mmap.ACCESS_READ)]
        self._sock = sock
        self._arena = Arena(arenas[1])
        self._leases: dict[int, Lease] = {}
        self._object, self._owner = WorkerObject(name), Owner()

    def run(self, number: int, initialized: Outcome, build: tuple[bytes, list[bytearray]]) -> None:
        """Build the object unless the initializer failed, then serve calls until the driver disconnects.

        Args:
            number: number of the ticket for the build.
            initialized: the outcome of the initializer.
            build: the packed function that builds the object.

        Raises:
            ConnectionError: the driver is gone.
        """
        self._send(number, self._object.build(initialized, partial(unpack, *build)))
        while message := self._sock.recv(MAX_MESSAGE_BYTES):
            call: Call = pickle.loads(message)  # noqa: S301  our own driver wrote it
            number, method, args, returned = call
            for start in returned:
                self._leases.pop(start, None)
            self._send(number, self._object.answer(method, partial(driver_arena[0].copy, args)))

    def _send(self, number: int, outcome: Outcome) -> None:
        """Send an answer; a fork of this process that users' code has let come so far ends instead."""
        if not self._owner.is_here:
            raise SystemExit

        def payload(value: Any) -> Payload:
            payload, lease = self._arena.payload(pack(value))
            if lease is not None:
                self._leases[payload.start] = lease
            return payload

        head, body = pack_reply(outcome, payload)
        answer: Answer = (number, head, body)
        self._sock.send(pickle.dumps(answer))
