"""What the driver holds of a worker process.

    call: any thread ─▶ socket ─▶ worker          what is large is in blocks, so that hundreds of calls fit
    thread of the backend ◀─ replies ─ socket: settles tickets
                          ◀─ how it ended ─ pipe of the fork server

A worker is over when the fork server has reaped it: then, not before, what is open is settled.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import socket
import threading
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from swath.workers.base import Handle, Job
from swath.workers.hosting import Loss
from swath.workers.message import outcome_of
from swath.workers.process.fork_server import ForkServer, in_words, kill_group
from swath.workers.process.memory import CallPickler, Lease, Pool, SharedBlocks, sent
from swath.workers.process.message import Answer, Inbox, Request, close_all, send
from swath.workers.process.reader import Reader
from swath.workers.tickets import Board, Ticket

_SEND_S = 60.0
_LINGER_S = 1.0
_END_S = 5.0


class ProcessHandle(Handle):
    """A worker process, and the calls that it has not answered.

    Args:
        job: how it is brought up.
        server: forks it.
        board: where tickets are settled.
        pool: the driver's blocks.
        reader: follows it until it is over.
        setup: a file that says what it is to be.

    Attributes:
        pid: its process, once it has one.
    """

    def __init__(self, job: Job, server: ForkServer, board: Board, pool: Pool, reader: Reader, setup: int) -> None:
        super().__init__(job)
        self.pid: int | None = None
        self._server, self._board, self._reader = server, board, reader
        self._number = next(server.numbers)
        self._blocks = SharedBlocks(pool, writable=True)
        self._sending = threading.Lock()
        self._serials = count(1)
        self._calls: dict[int, tuple[Ticket, list[Lease]]] = {0: (self.ready, [])}
        self._killed: str | None = None
        self._at_end = False
        self._exit: int | str | None = None
        self._loss: Loss | None = None
        name = f"swath worker {job.name.worker} (life {job.name.life})"
        self._sock, theirs = socket.socketpair()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        self._sock.settimeout(_SEND_S)
        self._inbox = Inbox(self._sock)
        self._pipe, said = multiprocessing.Pipe(duplex=False)
        with theirs, said:
            server.start(self._number, name, [theirs.fileno(), said.fileno(), setup])
        reader.watch(self._sock, self._read)
        reader.watch(self._pipe, self._read_news)

    def call(self, ticket: Ticket, args: Sequence[Any]) -> None:
        """Send a call, soon if not now.

        Raises:
            TypeError: an argument cannot be pickled.
            OSError: too many files are open.
        """
        pickler = CallPickler()
        payload, own = sent(pickler.pack(args), self._blocks.pool)
        leases = [*pickler.leases, *own]
        with self._sending:
            if self._loss is None:
                news, fds = self._blocks.news(leases)
                serial = next(self._serials)
                self._calls[serial] = ticket, leases
                self._send((serial, ticket.method, payload, news), fds)
                self._blocks.note_sent(news)
                return
        self._lose([ticket], self._loss)

    def kill(self, why: str) -> None:
        """Have the worker killed, whatever it does. Twice is fine."""
        if self._loss is None:
            self._killed = self._killed or why
            self._server.ask("kill", self._number)
            self._end_reading()

    def _end_reading(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            self._sock.shutdown(socket.SHUT_RD)  # the reader sees what has come, and then its end

    def _send(self, request: Request, fds: Sequence[int]) -> None:
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the reader sees the end
                send(self._sock, pickle.dumps(request), fds)
        except TimeoutError:
            self.kill(f"was killed: it has left so many calls unread that none could be sent for {_SEND_S:g} s")
        finally:
            close_all(fds)

    # What follows happens in the reader's thread.

    def _read(self) -> None:
        try:
            for message, fds in self._inbox.arrived():
                self._settle(message, fds)
        except EOFError:
            pass
        except Exception as error:  # noqa: BLE001  whatever it is: what follows cannot be trusted
            self.kill(f"was killed, since what it sent cannot be read: {error!r}")
        else:
            return
        self._reader.unwatch(self._sock)
        self._at_end = True
        self._reader.post(self._be_over_if_known)
        self._reader.post(self._insist, _LINGER_S if self._killed is None else _END_S)

    def _settle(self, message: bytearray, fds: list[int]) -> None:
        answer: Answer = pickle.loads(message)  # noqa: S301  our own worker wrote it
        serial, head, body, news = answer
        self._blocks.learn(news, fds)
        ticket, _ = self._calls.pop(serial)
        load = None if body is None else self._blocks.leased(body)
        self._board.settle(ticket, outcome_of(partial(self._blocks.own, head), load))

    def _read_news(self) -> None:
        """Read what the fork server says: the process, then its exit code, or why there is none."""
        try:
            news: int | str = self._pipe.recv()
        except EOFError:
            self._reader.unwatch(self._pipe)
            if self._exit is not None:
                return
            self._killed = self._killed or f"was lost with the process that starts workers, which {self._server.end()}"
            self._exit = "unknown"
            self._kill_directly()
            self._reader.post(self._insist, _END_S)  # its socket shows that it is dead
        else:
            if self.pid is None and isinstance(news, int):
                self.pid = news
            else:
                self._exit = news
                self._end_reading()  # a process that it has forked may have its socket, too
        self._reader.post(self._be_over_if_known)

    def _insist(self) -> None:
        """It has had time to end."""
        if self._loss is not None:
            return
        if self._killed is None:
            self.kill("closed its connection")
            self._reader.post(self._insist, _END_S)
        else:
            self._kill_directly()
            self._be_over(f"{self._killed}, and was not seen to end")

    def _kill_directly(self) -> None:
        if self.pid is not None:
            kill_group(self.pid)

    def _be_over_if_known(self) -> None:
        if self._loss is None and self._at_end and self._exit is not None:
            self._be_over(self._killed or in_words(self._exit))

    def _be_over(self, how: str) -> None:
        self._reader.unwatch(self._sock)
        self._reader.unwatch(self._pipe)
        loss = Loss(self.name, how, "unknown" if self._exit is None else self._exit)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # nobody waits for room in it any more
        with self._sending:
            self._loss = loss
            self._sock.close()
            self._pipe.close()
        close_all(self._inbox.fds)
        self._blocks.close()
        self._lose([ticket for ticket, _ in self._calls.values()], loss)
        self._calls.clear()

    def _lose(self, tickets: Sequence[Ticket], loss: Loss) -> None:
        """Answer these with the loss; whoever is answered so finds the life ended."""
        for ticket in (self.ended, *tickets):
            self._board.settle(ticket, loss.error())
