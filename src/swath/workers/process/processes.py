"""The worker processes of one backend: how they begin, are called and end.

A life ends in one place, `_finish`, which settles what is open. What leads there:

    the nursery has reaped it ─────────────────────────▶ _finish
    kill, or its wire ended ─▶ Kill ─▶ reaped, or 5 s ──▶ _finish
    the nursery is dead ─▶ killed from here ─▶ wire ends, or 5 s ─▶ _finish
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from swath.errors import Closed
from swath.workers.base import Job
from swath.workers.first import travelling
from swath.workers.hosting import Loss
from swath.workers.packing import Packed, pack
from swath.workers.process.blocks import Lender
from swath.workers.process.cargo import given, lent
from swath.workers.process.handle import ProcessHandle
from swath.workers.process.messages import Ended, Forked, Setup
from swath.workers.process.nursery import kill_group
from swath.workers.process.nursing import Nursing
from swath.workers.process.reader import Line, Reader
from swath.workers.process.sharing import ProcessShared, ProcessWatched, naming
from swath.workers.process.wire import Frame, close_all
from swath.workers.tickets import Board, Ticket

_END_S = 5.0
_CLOSE_S = 10.0
_LINGER_S = 1.0


class Processes:
    """All of a process backend but what users hold: the reader's thread knows this, and not the backend.

    Args:
        preload: modules that nurseries import.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self.board = Board()
        self._preload = preload
        self._driver = os.getpid()
        self._lock = threading.Lock()
        self._numbers = count()
        self._handles: dict[int, ProcessHandle] = {}
        self._lender = Lender()
        self._lending = threading.Lock()
        self._closed = False
        self._reader = Reader(self._end_all)
        try:
            self._nursing = self._new_nursing()
        except BaseException:
            self._reader.discard()
            raise
        self._reader.start()
        atexit.register(self.close)

    def spawn(self, job: Job) -> ProcessHandle:
        """See `Backend.spawn`."""
        before, build = travelling(job.before), _packed(job.build)
        fds: list[int] = []
        try:
            setup = pickle.dumps(_setup(job, before, build, fds))
            handle = self._begun(job)
        except BaseException:
            close_all(fds)
            raise
        handle.line.send(setup, fds)
        return handle

    def call(self, handle: ProcessHandle, method: str, args: Sequence[Any]) -> Ticket:
        """See `Backend.call`."""
        self._require_driver()
        ticket = Ticket(handle.name, method)
        fds: list[int] = []
        with naming() as named:
            packed = pack(args)
        with self._lending:
            for block in named.values():
                block.holders += 1
        try:
            ended = handle.send(ticket, given(packed, fds), fds, named)
        except OSError:
            close_all(fds)
            self._lender.returned.extend(named)
            raise
        if ended is not None:
            self._lender.returned.extend(named)
            self._lose(handle, [ticket], ended)
        return ticket

    def share(self, value: Any) -> ProcessShared:
        """See `Backend.share`."""
        packed = pack(value)
        with self._lending:
            cargo, block = lent(packed, self._lender)
        return ProcessShared(cargo, block, self._lender)

    def watched(self, size: int) -> ProcessWatched:
        """See `Backend.watched`."""
        packed = pack(np.zeros(size, dtype=np.int64))
        with self._lending:
            cargo, block = lent(packed, self._lender, least=0)
        assert block is not None
        return ProcessWatched(cargo, block, self._lender)

    def kill(self, handle: ProcessHandle) -> None:
        """See `Backend.kill`."""
        self._require_driver()
        handle.killed = handle.killed or "was killed"
        handle.nursing.kill(handle.number)
        self._reader.post(partial(self._condemn, handle))

    def close(self) -> None:
        """See `Backend.close`."""
        if os.getpid() == self._driver:
            self._reader.close(_CLOSE_S)

    def close_soon(self) -> None:
        """The same without waiting, for the garbage collector: it may run where locks are held."""
        if os.getpid() == self._driver:
            self._reader.close(0.0)

    def _lose(self, handle: ProcessHandle, tickets: Sequence[Ticket], loss: Loss) -> None:
        """Answer these with the loss; whoever is answered so finds the life ended."""
        for ticket in (handle.ended, *tickets):
            self.board.settle(ticket, loss.error())

    def _require_driver(self) -> None:
        """A fork of the driver has its sockets too, and must not speak in its name."""
        if os.getpid() != self._driver:
            raise Closed(
                f"these workers belong to process {self._driver}, of which this one is a fork; make others here"
            )

    def _begun(self, job: Job) -> ProcessHandle:
        """A worker that waits for its setup."""
        with self._lock:
            self._require_driver()
            if self._closed:
                raise Closed("no worker can be spawned: the backend is closed")
            if self._nursing.exit is not None:
                self._nursing = self._new_nursing()
            handle = ProcessHandle(job, next(self._numbers), self._nursing, self._lender)
            here, there = socket.socketpair()
            handle.line = Line(self._reader, here, partial(self._answered, handle), partial(self._silent, handle))
            self._handles[handle.number] = handle
        handle.nursing.fork(handle.number, there)
        return handle

    # What follows happens in the reader's thread.

    def _answered(self, handle: ProcessHandle, frame: Frame) -> None:
        ticket, outcome = handle.receive(frame)
        self.board.settle(ticket, outcome)

    def _silent(self, handle: ProcessHandle, broken: Exception | None) -> None:
        """Its wire has ended: it is dead, or as good as."""
        if handle.nursing.exit is not None:
            self._finish(handle, _orphan(handle.nursing), "unknown")
            return
        if broken is not None:
            handle.killed = f"was killed, since what it sent cannot be read: {broken!r}"
            self._condemn(handle)
        else:
            self._reader.after(_LINGER_S, partial(self._condemn, handle))  # it ends by itself, and with its own code

    def _condemn(self, handle: ProcessHandle) -> None:
        """See to it that it ends, and wait for that no longer than is sensible."""
        if not handle.ended.done:
            handle.nursing.kill(handle.number)
            self._reader.after(_END_S, partial(self._give_up, handle))

    def _give_up(self, handle: ProcessHandle) -> None:
        """The nursery has not reaped it in time."""
        if handle.ended.done:
            return
        if handle.pid is not None:
            kill_group(handle.pid)
        how = handle.killed or "closed its wire"
        self._finish(handle, f"{how}, and was not seen to end in {_END_S:g} s", "unknown")

    def _heard(self, news: Forked | Ended) -> None:
        """The nursery tells of a worker."""
        handle = self._handles.get(news.worker)
        if handle is None:
            return
        if isinstance(news, Forked):
            handle.pid = news.pid
        else:
            handle.line.read(all_of_it=True)  # it may have answered before it died
            self._finish(handle, handle.killed or _words(news.exit), news.exit)

    def _orphaned(self, nursing: Nursing) -> None:
        """The nursery is dead."""
        with self._lock:
            orphans = [handle for handle in self._handles.values() if handle.nursing is nursing]
        for handle in orphans:
            how = _orphan(nursing)
            if handle.pid is None or not handle.line.watched:
                self._finish(handle, how, "unknown")
            else:
                kill_group(handle.pid)
                self._reader.after(_END_S, partial(self._finish, handle, how, "unknown"))

    def _finish(self, handle: ProcessHandle, how: str, exit: int | str) -> None:  # noqa: A002  the field's name
        self._handles.pop(handle.number, None)
        loss = Loss(handle.name, how, exit)
        tickets = handle.end(loss)
        handle.line.close()
        self._lose(handle, tickets, loss)

    def _end_all(self, broken: BaseException | None) -> None:
        with self._lock:
            self._closed = True
        atexit.unregister(self.close)
        seen = self._nursing.end()
        how = (
            "was ended: its backend is closed" if broken is None else f"was ended, since its backend broke: {broken!r}"
        )
        for handle in list(self._handles.values()):
            if not seen and handle.pid is not None:
                kill_group(handle.pid)
            self._finish(handle, how, -signal.SIGKILL)
        with self._lending:
            self._lender.close()

    def _new_nursing(self) -> Nursing:
        return Nursing(self._reader, self._preload, self._heard, self._orphaned)


def _packed(function: Any) -> Packed:
    try:
        return pack(function)
    except Exception as error:
        raise TypeError(
            f"build={function!r} cannot be sent to a process: {error}; make what it refers to in the worker, inside it"
        ) from error


def _setup(job: Job, before: bytes, build: Packed, fds: list[int]) -> Setup:
    surroundings = dict(os.environ), list(sys.path), list(sys.argv), str(Path.cwd()), job.threads
    authkey = bytes(multiprocessing.current_process().authkey)
    return Setup(job.name, *surroundings, authkey, before, given(build, fds))


def _orphan(nursing: Nursing) -> str:
    return f"was lost with the process that starts workers, which {_words(nursing.exit)}"


def _words(exit: int | str | None) -> str:  # noqa: A002  the field's name
    if not isinstance(exit, int):
        return str(exit)
    if exit < 0:
        return f"was killed by {signal.Signals(-exit).name}"
    return f"ended with exit code {exit}"
