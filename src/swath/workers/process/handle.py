"""What the driver holds of a worker process.

    call: any thread ─▶ socket ─▶ worker          a few calls ahead at most, so that sending never waits
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
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

from swath.workers.base import Handle, Job
from swath.workers.hosting import Loss
from swath.workers.message import outcome_of
from swath.workers.outcome import Outcome
from swath.workers.process.fork_server import ForkServer, in_words, kill_group
from swath.workers.process.memory import Block, Pool, SharedBlocks, call_packed, sent
from swath.workers.process.message import Answer, Inbox, Request, close_all, send
from swath.workers.process.reader import Reader
from swath.workers.tickets import Board, Ticket

_AHEAD = 16
"""Calls that a worker has been sent and has not answered. So many fit into its socket: what is large is in blocks."""

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
        setup: a file with its `Setup`.

    Attributes:
        pid: its process, once it has one.
    """

    def __init__(self, job: Job, server: ForkServer, board: Board, pool: Pool, reader: Reader, setup: int) -> None:
        super().__init__(job)
        self.pid: int | None = None
        self._server = server
        self._number = next(server.numbers)
        self._board = board
        self._pool = pool
        self._reader = reader
        self._blocks = SharedBlocks(pool, writable=True)
        self._lock = threading.Lock()
        self._serials = count(1)
        self._calls: dict[int, tuple[Ticket, list[Block]]] = {0: (self.ready, [])}
        self._unsent: deque[tuple[int, bytes, list[int]]] = deque()
        self._answered = -1
        self._killed: str | None = None
        self._at_end = False
        self._exit: int | str | None = None
        self._loss: Loss | None = None
        name = f"swath worker {job.name.worker} (life {job.name.life})"
        self._sock, theirs = socket.socketpair()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
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
        packed, named = call_packed(args)
        self._pool.hold(named)
        payload, own = sent(packed, self._pool)
        named += own
        with self._lock:
            if self._loss is None:
                serial = next(self._serials)
                news, fds = self._blocks.news(named)
                request = pickle.dumps(Request(serial, ticket.method, payload, news))
                self._calls[serial] = ticket, named
                if serial - self._answered <= _AHEAD:
                    self._send(request, fds)
                else:
                    self._unsent.append((serial, request, fds))
                self._blocks.note_sent(news)
                return
        self._give_back(named)
        self._lose([ticket], self._loss)

    def kill(self, why: str) -> None:
        """Have the worker killed, whatever it does. Twice is fine."""
        with self._lock:
            if self._loss is None:
                self._killed = self._killed or why
                self._server.kill(self._number)
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RD)  # the reader sees what has come, and then its end

    def _send(self, request: bytes, fds: Sequence[int]) -> None:
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the reader sees the end
                send(self._sock, request, fds)
        finally:
            close_all(fds)

    def _give_back(self, blocks: Iterable[Block]) -> None:
        self._pool.give_back(block.id for block in blocks)

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
        self._blocks.learn(answer.news, fds)
        with self._lock:
            ticket, named = self._calls.pop(answer.serial)
            self._answered = answer.serial
            while self._unsent and self._unsent[0][0] - self._answered <= _AHEAD:
                self._send(*self._unsent.popleft()[1:])
        self._give_back(named)
        self._board.settle(ticket, self._outcome(answer))

    def _outcome(self, answer: Answer) -> Outcome:
        body = None if answer.body is None else self._blocks.leased(answer.body)
        try:
            return outcome_of(partial(self._blocks.own, answer.head), body)
        finally:
            self._blocks.give_back(answer.head)

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
        with self._lock:
            self._loss = loss
            self._sock.close()
            self._pipe.close()
        for fds in (self._inbox.fds, *(fds for _, _, fds in self._unsent)):
            close_all(fds)
        self._blocks.close()
        for _, named in self._calls.values():
            self._give_back(named)
        self._lose([ticket for ticket, _ in self._calls.values()], loss)

    def _lose(self, tickets: Sequence[Ticket], loss: Loss) -> None:
        """Answer these with the loss; whoever is answered so finds the life ended."""
        for ticket in (self.ended, *tickets):
            self._board.settle(ticket, loss.error())
