"""How values travel through Ray.

    value ─▶ packed ─▶ small: bytes, which Ray passes on as they are      ─▶ unpacked ─▶ value
                       large: Large, whose buffers Ray writes once,
                       to its store, and whoever is on that machine
                       reads where they lie

References to objects in the store, wherever in a value they are, travel beside it: Ray counts only those that it sees,
and those that it does not see can be waited for in vain.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

from swath.errors import PayloadLost
from swath.extras import need
from swath.workers.hosting import Hosted
from swath.workers.outcome import Outcome
from swath.workers.packing import Pickler, begin_process, owned, reply_to, unpack
from swath.workers.ray.worker import Answer, Large, Setup, Wire

SMALL = 90 * 1024
"""So many bytes or less travel along: with what is said beside them they are below the 100 KiB at which Ray stops."""

ELSEWHERE = b""
"""In a reply, in the place of a body that is large: it is a result of its own."""

_FETCH_S = 120.0


class RayShared:
    """A shared value: in Ray's store, or a small one that travels along.

    Args:
        sent: what travels, a reference or the value itself.
    """

    def __init__(self, sent: Any) -> None:
        self.sent = sent

    def open(self) -> Any:
        """The value; its arrays are views that must not be written."""
        return unpacked(self.sent if isinstance(self.sent, bytes) else _ray().get(self.sent, timeout=_FETCH_S))


def shared(value: Any) -> RayShared:
    """Put a value into Ray's store; arrays in it may change afterwards."""
    wire = packed(value)
    return RayShared(wire if isinstance(wire, bytes) else _ray().put(wire))


def fetched(body: Any, gone: Callable[[], str | None]) -> Any:
    """The body of a parcel; its arrays are views into Ray's store, which keeps it for as long as they live.

    Args:
        body: itself, if it is small, or a reference to it.
        gone: says why Ray is gone, if it is.

    Raises:
        PayloadLost: Ray has lost it.
    """
    if isinstance(body, bytes | Large):
        return unpacked(body)
    if why := gone():
        raise PayloadLost(f"the body of a parcel is lost: {why}")
    try:
        return unpacked(_ray().get(body, timeout=_FETCH_S))
    except _ray().exceptions.RayError as error:
        raise PayloadLost(f"Ray lost the body of a parcel: {error}") from error


def packed(value: Any) -> Wire:
    """Make a value ready to travel; its arrays must not change until Ray has it."""
    pickler = _RayPickler()
    made = pickler.pack(value)
    if pickler.beside or len(made.head) + made.size > SMALL:
        return Large(made.head, [pickle.PickleBuffer(buffer) for buffer in made.buffers], pickler.beside)
    return pickle.dumps((made.head, made.copies(), []))


def unpacked(wire: Wire, *, own: bool = False) -> Any:
    """The value.

    Args:
        wire: what came.
        own: its arrays are writable and nobody else's; otherwise they are views that cannot be written.
    """
    head, buffers, beside = pickle.loads(wire) if isinstance(wire, bytes) else wire  # noqa: S301  our own wrote it
    outer = _beside.set(beside)
    try:
        return unpack(head, owned(buffers) if own else [memoryview(buffer).toreadonly() for buffer in buffers])
    finally:
        _beside.reset(outer)


class ActorServer:
    """Hosts a worker's object in a process that is there for nothing else.

    Args:
        setup: which worker it is.
        before: what became of what runs first; if that went well, the object is made.

    Attributes:
        built: what became of making the object.
        method: gives a method of the object, for others than our driver.
    """

    def __init__(self, setup: Setup, before: Outcome) -> None:
        begin_process(setup.threads)
        self._hosted = Hosted(setup.name)
        self.method = self._hosted.method
        self.built = _reply(self._hosted.build(before, lambda: unpacked(setup.build, own=True)))

    def answer(self, method: str, wire: Wire) -> Answer:
        """Call a method of the object."""
        return _reply(self._hosted.answer(method, lambda: unpacked(wire, own=True)))


def _reply(outcome: Outcome) -> Answer:
    head, body = reply_to(outcome, packed)
    body, large = (ELSEWHERE, body) if isinstance(body, Large) else (body, b"")
    return (head, body) if isinstance(head, Large) else pickle.dumps((head, body)), large  # bytes pass as they are


class _RayPickler(Pickler):
    def __init__(self) -> None:
        super().__init__()
        self.beside: list[Any] = []
        self._reference = _ray().ObjectRef

    def reducer_override(self, obj: Any) -> Any:
        """Where a shared value, or a reference, is; a persistent id would be asked for of every number, too."""
        kind = type(obj)
        if kind is not RayShared and kind is not self._reference:
            return super().reducer_override(obj)
        sent = obj.sent if kind is RayShared else obj
        if not isinstance(sent, bytes):
            self.beside.append(sent)
            sent = len(self.beside) - 1
        return _found, (kind is RayShared, sent)


_beside: ContextVar[Sequence[Any]] = ContextVar("swath_beside")
"""The references that travelled beside the pickle that this thread loads."""


def _found(shared: bool, sent: int | bytes) -> Any:
    """What stood where the pickle is, as it is to be used here."""
    value = _beside.get()[sent] if isinstance(sent, int) else sent
    return RayShared(value) if shared else value


@cache
def _ray() -> Any:
    return need("ray", extra="ray", why="for workers on Ray")
