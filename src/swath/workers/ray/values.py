"""Values on their way through Ray.

    value ─▶ pack ─▶ small: bytes, which Ray passes on unchanged        ─▶ unpack_copy, unpack_view ─▶ value
                     large: Large, whose buffers Ray writes once, to
                     its store, where readers on that machine view them

Ray's references in a value, at any depth, travel in a separate list: Ray counts only references that it sees, and a
wait for another one may never end.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

from swath.errors import PayloadLost
from swath.extras import import_extra
from swath.workers.outcome import Outcome
from swath.workers.packing import Pickler, pack_reply, unpack, writable_copies
from swath.workers.ray.worker import Answer, Large, PackedValue

MAX_SMALL_BYTES = 90 * 1024
"""Size of a value that travels in a message: with the rest of it below the 100 KiB at which Ray uses its store."""

SEPARATE = b""
"""In a reply, in the place of a large body, which is a separate result."""

_FETCH_S = 120.0


class RayShared:
    """A shared value: in Ray's store, or a small one that travels in messages.

    Args:
        sent: a reference or the packed value.
    """

    def __init__(self, sent: Any) -> None:
        self.sent = sent

    def open(self) -> Any:
        """Return the value; its arrays are views that must not be written."""
        return unpack_view(self.sent if isinstance(self.sent, bytes) else _ray().get(self.sent, timeout=_FETCH_S))


def share(value: Any) -> RayShared:
    """Put a value into Ray's store; its arrays may change afterwards."""
    packed = pack(value)
    return RayShared(packed if isinstance(packed, bytes) else _ray().put(packed))


def fetch_body(body: Any, loss_reason: Callable[[], str | None]) -> Any:
    """Return the body of a parcel; its arrays are views into Ray's store, which keeps it as long as they exist.

    Args:
        body: packed, or a reference.
        loss_reason: returns why Ray is lost, or `None`.

    Raises:
        PayloadLost: Ray has lost it.
    """
    if isinstance(body, bytes | Large):
        return unpack_view(body)
    if reason := loss_reason():
        raise PayloadLost(f"the body of a parcel is lost: {reason}")
    try:
        return unpack_view(_ray().get(body, timeout=_FETCH_S))
    except _ray().exceptions.RayError as error:
        raise PayloadLost(f"Ray lost the body of a parcel: {error}") from error


def pack(value: Any) -> PackedValue:
    """Pack a value; its arrays must not change until Ray has it."""
    pickler = _RayPickler()
    packed = pickler.pack(value)
    if pickler.references or len(packed.head) + packed.size > MAX_SMALL_BYTES:
        return Large(packed.head, [pickle.PickleBuffer(buffer) for buffer in packed.buffers], pickler.references)
    return pickle.dumps((packed.head, packed.copy_buffers(), []))


def unpack_copy(packed: PackedValue) -> Any:
    """Return the value; its arrays are writable copies."""
    return _unpack(packed, writable_copies)


def unpack_view(packed: PackedValue) -> Any:
    """Return the value; its arrays are views that cannot be written."""
    return _unpack(packed, lambda buffers: [memoryview(buffer).toreadonly() for buffer in buffers])


def _unpack(packed: PackedValue, read: Callable[[list[Any]], list[Any]]) -> Any:
    head, buffers, references = pickle.loads(packed) if isinstance(packed, bytes) else packed  # noqa: S301  ours
    token = _references.set(references)
    try:
        return unpack(head, read(buffers))
    finally:
        _references.reset(token)


def pack_answer(outcome: Outcome) -> Answer:
    """Pack an outcome for Ray; see `Answer`."""
    head, body = pack_reply(outcome, pack)
    body, large = (SEPARATE, body) if isinstance(body, Large) else (body, b"")
    return (head, body) if isinstance(head, Large) else pickle.dumps((head, body)), large  # Ray passes bytes on


class _RayPickler(Pickler):
    def __init__(self) -> None:
        super().__init__()
        self.references: list[Any] = []
        self._reference_type = _ray().ObjectRef

    def reducer_override(self, obj: Any) -> Any:
        """Replace references by their index; a persistent id would be asked for every number, too."""
        kind = type(obj)
        if kind is not RayShared and kind is not self._reference_type:
            return super().reducer_override(obj)
        sent = obj.sent if kind is RayShared else obj
        if not isinstance(sent, bytes):
            self.references.append(sent)
            sent = len(self.references) - 1
        return _rebuild_reference, (kind is RayShared, sent)


_references: ContextVar[Sequence[Any]] = ContextVar("swath_references")
"""The references of the value that this thread unpacks."""


def _rebuild_reference(shared: bool, sent: int | bytes) -> Any:
    value = _references.get()[sent] if isinstance(sent, int) else sent
    return RayShared(value) if shared else value


@cache
def _ray() -> Any:
    return import_extra("ray", extra="ray", purpose="for workers on Ray")
