"""How values travel through Ray.

    value ─▶ packed ─▶ small: bytes, which Ray passes on as they are      ─▶ unpacked ─▶ value
                       large: Freight, whose buffers Ray writes once,
                       to its store, and whoever is on that machine
                       reads where they lie

References to objects in the store, wherever in a value they are, travel beside it: Ray counts only those that it sees,
and those that it does not see can be waited for in vain.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from swath.errors import PayloadLost
from swath.extras import need
from swath.workers.message import Reply
from swath.workers.outcome import thawed
from swath.workers.packing import PROTOCOL, Pickler, owned, unpack
from swath.workers.ray.messages import Freight, Wire

SMALL = 90 * 1024
"""So many bytes or less travel along: with what is said beside them they are below the 100 KiB at which Ray stops."""

_FETCH_S = 120.0


class RayShared:
    """A value in Ray's store, or a small one that travels along.

    Args:
        value: arrays in it may change afterwards.
    """

    def __init__(self, value: Any) -> None:
        wire = packed(value)
        self._sent = wire if isinstance(wire, bytes) else _ray().put(wire)

    def __reduce__(self) -> Any:
        raise TypeError("a shared value travels only as an argument of a call to a worker")

    def sent(self) -> Any:
        """What travels: the value itself, or a reference."""
        if (sent := self._sent) is None:
            raise ValueError("this shared value was released; share it anew")
        return sent

    def open(self) -> Any:
        """The value; its arrays are views that must not be written."""
        return _opened(self.sent())

    def release(self) -> None:
        """No further call will name it; Ray frees it when the calls in flight are answered."""
        self._sent = None


class Lent:
    """The same value in a worker; good while it answers the call that brought it."""

    def __init__(self, sent: Any) -> None:
        self._sent = sent

    def open(self) -> Any:
        """The value; its arrays are views that must not be written.

        Raises:
            PayloadLost: the call that brought it is answered.
        """
        if self._sent is None:
            raise PayloadLost("a shared value is read while the call that brought it is answered, not later")
        return _opened(self._sent)

    def release(self) -> None:
        """The driver does that."""

    def expire(self) -> None:
        """The call is answered: hold nothing of the store."""
        self._sent = None


def fetched(body: Any, gone: Callable[[], str | None]) -> Any:
    """The body of a parcel; its arrays are views into Ray's store, which keeps it for as long as they live.

    Args:
        body: itself, if it is small, or a reference to it.
        gone: says why Ray is gone, if it is.

    Raises:
        PayloadLost: Ray has lost it.
    """
    if isinstance(body, bytes | Freight):
        return unpacked(body)
    if why := gone():
        raise PayloadLost(f"the body of a parcel is lost: {why}")
    try:
        return unpacked(_ray().get(body, timeout=_FETCH_S))
    except _ray().exceptions.RayError as error:
        raise PayloadLost(f"Ray lost the body of a parcel: {error}") from error


def packed(value: Any) -> Wire:
    """Make a value ready to travel; its arrays must not change until Ray has it."""
    pickled: list[pickle.PickleBuffer] = []
    beside: list[Any] = []
    file = io.BytesIO()
    _RayPickler(file, pickled, beside).dump(value)
    head, buffers = file.getvalue(), [buffer.raw() for buffer in pickled]
    if beside or len(head) + sum(buffer.nbytes for buffer in buffers) > SMALL:
        return Freight(head, [pickle.PickleBuffer(buffer) for buffer in buffers], beside)
    return pickle.dumps((head, [bytearray(buffer) for buffer in buffers]))


def unpacked(wire: Wire, lent: list[Lent] | None = None, *, own: bool = False) -> Any:
    """The value.

    Args:
        wire: what came.
        lent: collects shared values that are in it.
        own: its arrays are writable and nobody else's; otherwise large ones may be views that are neither.
    """
    if isinstance(wire, bytes):
        head, buffers = pickle.loads(wire)  # noqa: S301  our own driver or worker wrote it
        return _loaded(head, buffers, _Beside([], lent))
    return _loaded(wire.head, owned(wire.buffers) if own else wire.buffers, _Beside(wire.beside, lent))


def replied(answer: Reply | bytes) -> tuple[Reply, Any]:
    """A reply, and the value that is in it, which is nobody else's.

    Raises:
        BaseException: what the call raised, or what rebuilding its value here does.
    """
    reply: Reply = pickle.loads(answer) if isinstance(answer, bytes) else answer  # noqa: S301  our own worker's
    value = unpacked(reply.value, own=True)
    if reply.raised:
        raise thawed(value)
    return reply, value


def _opened(sent: Any) -> Any:
    if isinstance(sent, bytes):
        head, buffers = pickle.loads(sent)  # noqa: S301  our own driver wrote it
        return unpacked(Freight(head, [memoryview(buffer).toreadonly() for buffer in buffers], []))
    return unpacked(_ray().get(sent, timeout=_FETCH_S))


class _RayPickler(Pickler):
    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer], beside: list[Any]) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=buffers.append)
        self._beside = beside
        self._reference = _reference_type()

    def reducer_override(self, obj: Any) -> Any:
        """Where a shared value, or a reference, is; a persistent id would be asked for of every number, too."""
        kind = type(obj)
        if kind is not RayShared and kind is not self._reference:
            return super().reducer_override(obj)
        sent = obj.sent() if kind is RayShared else obj
        if not isinstance(sent, bytes):
            self._beside.append(sent)
            sent = len(self._beside) - 1
        return _found, (kind is RayShared, sent)


class _Beside(NamedTuple):
    """What travelled beside a pickle.

    Attributes:
        values: references.
        lent: collects shared values; `None` for nobody.
    """

    values: Sequence[Any]
    lent: list[Lent] | None


class _Loading(threading.local):
    """The pickle that this thread loads."""

    beside = _Beside((), None)


_loading = _Loading()


def _loaded(head: bytes, buffers: Sequence[Any], beside: _Beside) -> Any:
    outer, _loading.beside = _loading.beside, beside
    try:
        return unpack(head, buffers)
    finally:
        _loading.beside = outer


def _found(shared: bool, sent: int | bytes) -> Any:
    """What stood where the pickle is, as it is to be used here."""
    beside = _loading.beside
    value = beside.values[sent] if isinstance(sent, int) else sent
    if not shared:
        return value
    lent = Lent(value)
    if beside.lent is not None:
        beside.lent.append(lent)
    return lent


@cache
def _reference_type() -> type:
    kind: type = _ray().ObjectRef
    return kind


def _ray() -> Any:
    return need("ray", extra="ray", why="for workers on Ray")
