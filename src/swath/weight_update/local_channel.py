"""A scheme's own channel on this machine: shared memory, handed out through a socket to those who know its key.

    put ─▶ memory without a name ─▶ register             thread per reader
                                       └─ descriptor ──(socket)──▶ LocalReader: maps it, read-only

Memory is never written again once it was handed out. Nothing has a name in the file system where sockets can do
without (Linux), so nothing is left however the sender ends.
"""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
import socket
import struct
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path

from swath.weight_update.mail import EVERYONE, PATIENCE_S, Address, Letter, Post
from swath.weights.register import Mark, Register
from swath.weights.snapshot import Snapshot
from swath.workers.packing import pack, unpack
from swath.workers.process.blocks import extent, mapped
from swath.workers.process.cargo import given, viewed
from swath.workers.process.messages import Cargo
from swath.workers.process.wire import Ended, Frame, Wire, close_all

_ASK = struct.Struct("<32sqqd")  # key, worker, after, timeout
_NOTHING = b""
_ONE = "model"
_MOST_WAITING = 128
_NAMELESS = sys.platform == "linux"  # there, addresses of sockets need no file


class _Item:
    """A snapshot in memory of its own."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._fds: list[int] = []
        self._cargo = given(pack(snapshot), self._fds)

    def frame(self, mark: Mark) -> tuple[bytes, list[int]]:
        """What is sent to a reader."""
        return pickle.dumps((mark.serial, self._cargo)), [os.dup(fd) for fd in self._fds]

    def close(self) -> None:
        close_all(self._fds)
        self._fds.clear()


class _Office:
    """Serves readers; what the threads share."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._closed = threading.Event()
        self._change = threading.Condition()
        self._register: Register[_Item] = Register()
        self._items: list[_Item] = []
        self._readers: dict[threading.Thread, socket.socket] = {}
        self._folder: str | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self._place())
        self._socket.listen(_MOST_WAITING)
        self.name = self._socket.getsockname()

    def open(self) -> None:
        """Begin to serve."""
        self._accepting = threading.Thread(target=self._accept, name="swath-weights", daemon=True)
        self._accepting.start()

    def put(self, post: Post) -> None:
        """Make these the newest."""
        made = {who: _Item(snapshot) for who, snapshot in post.items()}
        with self._change:
            if self._closed.is_set():
                _close_items(made.values())
                raise RuntimeError("this scheme was shut down; initialise it on a sender again")
            if EVERYONE in made:
                self._register.put({_ONE: made[EVERYONE]})
            each = {who: {_ONE: item} for who, item in made.items() if who != EVERYONE}
            if each:
                self._register.put_each(each)
            self._items.extend(made.values())
            self._change.notify_all()
            used = {id(item) for item in self._register.items()}
            _close_items(item for item in self._items if id(item) not in used)
            self._items = [item for item in self._items if id(item) in used]

    def close(self) -> None:
        """Stop serving and let go of everything."""
        with self._change:
            if self._closed.is_set():
                return
            self._closed.set()
            self._change.notify_all()
            _close_items(self._items)
            readers = dict(self._readers)
        for sock in readers.values():
            with suppress(OSError):  # its reader has gone
                sock.shutdown(socket.SHUT_RDWR)
        self._end_accepting()
        for thread in {self._accepting, *readers} - {threading.current_thread()}:
            thread.join(PATIENCE_S)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _place(self) -> str:
        """An address that nobody else has."""
        if _NAMELESS:
            return f"\0swath-{secrets.token_hex(16)}"
        self._folder = tempfile.mkdtemp(prefix="swath")
        return str(Path(self._folder) / "weights")

    def _end_accepting(self) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(self.name)  # wakes the thread that accepts, on every system
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,), name="swath-weights-reader", daemon=True)
            with self._change:
                if self._closed.is_set():
                    sock.close()
                    return
                self._readers[thread] = sock
                thread.start()  # before anybody can wait for its end

    def _serve(self, sock: socket.socket) -> None:
        wire = Wire(sock, patient=True)
        with suppress(Ended, OSError, struct.error):  # it has gone, or is no reader
            while True:
                key, worker, after, timeout = _ASK.unpack(wire.receive().body)
                if not compare_digest(key, self.key):
                    break
                wire.send(*self._answer(worker, after, timeout))
        with self._change:
            self._readers.pop(threading.current_thread(), None)
        wire.close()

    def _answer(self, worker: int, after: int, timeout: float) -> tuple[bytes, list[int]]:
        def news() -> bool:
            return self._closed.is_set() or self._register.newest(worker).serial > after

        with self._change:
            if not self._change.wait_for(news, timeout) or self._closed.is_set():
                return _NOTHING, []
            return self._register.meant(worker)[_ONE].frame(self._register.newest(worker))


class LocalChannel:
    """A scheme's own channel; other processes of this machine reach it. See `OwnChannel`."""

    def __init__(self) -> None:
        self._office = _Office()
        self._office.open()
        self.close = weakref.finalize(self, self._office.close)

    @property
    def address(self) -> Address:
        """Where it is."""
        return LocalAddress(self._office.name, self._office.key)

    def put(self, post: Post) -> None:
        """Make these the newest."""
        self._office.put(post)


@dataclass(frozen=True)
class LocalAddress:
    """Where a channel is on this machine.

    Attributes:
        name: of its socket.
        key: opens it.
    """

    name: str | bytes
    key: bytes = field(repr=False)

    def reader(self) -> LocalReader:
        """Reads it from here."""
        return LocalReader(self)


class LocalReader:
    """Reads a channel of this machine. See `Reader`."""

    def __init__(self, address: LocalAddress) -> None:
        self._address = address
        self._wire: Wire | None = None

    def newest(self, worker: int, after: int, timeout: float) -> Letter | None:
        """What is meant for a reader, if it is newer than what it has seen."""
        try:
            frame = self._asked(_ASK.pack(self._address.key, worker, after, timeout), timeout + PATIENCE_S)
        except (OSError, Ended) as error:
            self.close()
            raise RuntimeError(
                f"the weights of this scheme cannot be reached ({str(error) or 'its sender has ended'}): they are in "
                "the shared memory of the machine where its sender runs, as long as that is not shut down; across "
                "machines use a RayWeightSyncScheme"
            ) from error
        if not frame.body:
            return None
        serial, cargo = pickle.loads(frame.body)  # noqa: S301  the sender wrote it, whose key we have
        return Letter(serial, _opened(cargo, frame.fds))

    def close(self) -> None:
        """Let go of the channel."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _asked(self, request: bytes, patience: float) -> Frame:
        if self._wire is None:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._wire = Wire(self._sock, patient=True)
            self._sock.connect(self._address.name)
        self._sock.settimeout(patience)
        self._wire.send(request)
        return self._wire.receive()

    def __del__(self) -> None:
        self.close()


def _opened(cargo: Cargo, fds: list[int]) -> Snapshot:
    """The snapshot; its arrays are views that keep the memory."""
    try:
        snapshot: Snapshot = (
            viewed(cargo, mapped(fds[0], extent(cargo.sizes), writable=False))
            if cargo.sizes
            else unpack(cargo.head, cargo.inline)
        )
    finally:
        close_all(fds)
    return snapshot


def _close_items(items: Iterable[_Item]) -> None:
    for item in items:
        item.close()
