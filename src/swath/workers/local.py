"""What places within this process have in common: values are copied where elsewhere they would cross a border."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swath.errors import Closed
from swath.workers.base import Job, OnBoard, OwingHandle
from swath.workers.hosting import Hosted, Loss, attempted
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.packing import Parcel, owned, pack, unpack
from swath.workers.tickets import Board, Received, Ticket


@dataclass(frozen=True)
class QueuedCall:
    """A call that waits for its turn.

    Attributes:
        ticket: where its outcome goes.
        method: what to call; `None` to build the worker.
        args: copies of what was given.
    """

    ticket: Ticket
    method: str | None = None
    args: Sequence[Any] = ()


class LocalHandle(OwingHandle):
    """A worker of this process."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._hosted = Hosted(job.name)
        self.opened(self.ended)

    def end(self, how: Loss) -> list[Ticket]:
        """Let go of the object; what is open. None the second time."""
        self._hosted = Hosted(self.job.name)
        return super().end(how)

    def carry_out(self, call: QueuedCall) -> Outcome:
        """Build, or call the method; what comes back shares no memory with the worker but the body of a parcel."""
        if call.method is None:
            before = Value(None) if self.job.before is None else attempted(self.job.before)
            return self._hosted.build(before, lambda: self.job.build)
        return _handed_over(self._hosted.answer(call.method, lambda: call.args))


class LocalShared:
    """A value that was copied once; its arrays cannot be written."""

    def __init__(self, value: Any) -> None:
        packed = pack(value)
        self._head = packed.head
        self._buffers = [memoryview(buffer).toreadonly() for buffer in owned(packed.buffers)]

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalShared:
        return self

    def open(self) -> Any:
        """The value; its arrays are views that must not be written."""
        return unpack(self._head, self._buffers)

    def release(self) -> None:
        """Its memory goes when nobody holds it any more."""


class LocalWatched:
    """Numbers that all workers of this process see."""

    def __init__(self, size: int) -> None:
        self.values = np.zeros(size, dtype=np.int64)

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalWatched:
        return self

    def open(self) -> Any:
        """The numbers."""
        return self.values

    def release(self) -> None:
        """Their memory goes when nobody holds them any more."""


class LocalBackend(OnBoard):
    """A backend of this process."""

    def __init__(self) -> None:
        super().__init__(Board())
        self._closed = False

    def require_open(self) -> None:
        """Raise `Closed` when it is closed."""
        if self._closed:
            raise Closed("no worker can be spawned: the backend is closed")

    def watched(self, size: int) -> LocalWatched:
        """See `Backend.watched`."""
        return LocalWatched(size)

    def share(self, value: Any) -> LocalShared:
        """Copy the value once."""
        return LocalShared(value)


def _handed_over(outcome: Outcome) -> Outcome:
    if isinstance(outcome, Error):
        return outcome
    try:
        value = outcome.value
        if not isinstance(value, Parcel):
            return Value(copy.deepcopy(value))
        return Value(Received(copy.deepcopy(value.head), lambda: value.body))
    except Exception as error:  # noqa: BLE001  what cannot be copied cannot be sent elsewhere
        return Error(error)
